"""Infers the industry of yesterday's new customers, each by the LoRA adapter of its country.

Countries without an adapter of their own, which the table has as null, are answered by the model itself.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

ADAPTERS = os.environ.get("RAY_LLM_EXAMPLE_ADAPTERS", "s3://models")
COUNTRIES = ["Brazil", "Germany", "Japan"]


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 2, "retry_delay": pendulum.duration(minutes=5)},
    tags=["ray-llm"],
)
def customers_adapters() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_by_country",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        adapter={
            "column": "Country",
            "paths": {country: f"{ADAPTERS}/{country.lower()}-lora" for country in COUNTRIES},
            "on_null": "base",
        },
        prompt="What industry is this company in: {Company}",
        choices=["Law Firm", "Healthcare", "Technology", "Retail", "Other"],
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_adapters()
