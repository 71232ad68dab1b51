"""Embeds yesterday's new customers, for a search by meaning.

The vectors are a column of lists of a fixed size and of length 1: their products are cosines.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 2, "retry_delay": pendulum.duration(minutes=5)},
    tags=["ray-llm"],
)
def customers_embed() -> None:
    RayLLMBatchOperator(
        task_id="embed_customers",
        task="embed",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_vectors",
        model_source=os.environ.get("RAY_LLM_EXAMPLE_VECTORS", "sentence-transformers/all-MiniLM-L6-v2"),
        prompt="{Company}",
        output_column="vector",
    )


customers_embed()
