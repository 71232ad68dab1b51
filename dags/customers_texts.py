"""Writes a line about each of yesterday's customers: a prompt, and nothing else."""

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
def customers_texts() -> None:
    RayLLMBatchOperator(
        task_id="write_lines",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers") + "_lines",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        prompt="What does the company {Company} do? Answer in one line.",
        sampling_params={"temperature": 0.8, "seed": 7, "max_tokens": 32},
        output_column="line",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_texts()
