"""Answers one slice an hour.

An hourly DAG needs an hourly `source.slice_format`; otherwise all runs of a day share one key.
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
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="Europe/Berlin"),
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    catchup=False,
    tags=["ray-llm"],
)
def customers_hourly() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        # Keys are in the DAG's timezone. At the end of summer time an hour occurs twice: %z keeps both apart.
        source={"slice_format": "%Y-%m-%dT%H%z", "on_empty": "skip"},
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "_hourly/hour={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched")
        + "_hourly/hour={slice}",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_hourly()
