"""Has an endpoint with OpenAI's chat completions answer, within its limits and a budget of tokens.

The connection `llm_endpoint` (type HTTP) has the endpoint's host, and its key as the password.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,  # each run has the limits for itself
    default_args={"retries": 2, "retry_delay": pendulum.duration(minutes=5)},
    tags=["ray-llm"],
)
def customers_endpoint() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_by_endpoint",
        model_source=os.environ.get("RAY_LLM_EXAMPLE_ENDPOINT_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        model_conn_id="llm_endpoint",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 24},
        output_column="industry",
        engine={
            "kind": "http",
            "url": os.environ.get("RAY_LLM_EXAMPLE_ENDPOINT", "https://llm.example.com/v1"),
            "requests_per_minute": 3000,
            "tokens_per_minute": 1_000_000,
            "token_budget": 20_000_000,
        },
    )


customers_endpoint()
