"""Infers the industry of yesterday's new customers, every day.

With `CronDataIntervalTimetable` a run's slice is the day that just ended. To clear, retry or trigger a
published day again costs nothing.
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
    max_active_runs=4,
    default_args={"retries": 2, "retry_delay": pendulum.duration(minutes=5)},
    tags=["ray-llm"],
)
def customers_daily() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        ray_conn_id="ray_default",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched"),
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_daily()
