"""Finds the industry of yesterday's new customers in their names, by an engine of your own: a baseline to
compare models with.

The engine is a class in `engines/keywords.py` beside this file, and travels with the job.
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
    tags=["ray-llm"],
)
def customers_keywords() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_by_keywords",
        model_source="keywords",  # a name of the engine, for which no model is looked for
        prompt="{Company}",
        choices=["Law", "Dental", "Software", "Bank"],
        output_column="industry",
        engine="keywords:Keywords",
        code_paths=["engines/keywords.py"],
        quality={"max_quarantine": 1.0},  # names that say nothing
    )


customers_keywords()
