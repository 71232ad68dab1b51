"""Describes yesterday's photos, which a table names by their addresses.

Photos are read, checked and made smaller on CPUs beside the engine. One that is broken, or not there, goes to
quarantine, and stops no other.
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
def photos_caption() -> None:
    RayLLMBatchOperator(
        task_id="caption_photos",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/photos") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/photos_captioned"),
        model_source=os.environ.get("RAY_LLM_EXAMPLE_VISION", "Qwen/Qwen2.5-VL-7B-Instruct"),
        prompt="Describe the photo in one sentence.",
        images={
            "column": "photo",
            "sources": [os.environ.get("RAY_LLM_EXAMPLE_PHOTOS", "s3://lake/photo-files/")],
            "max_pixels": 500_000,
        },
        sampling_params={"temperature": 0, "max_tokens": 64},
        output_column="caption",
        engine={"kwargs": {"max_model_len": 2048}},
    )


photos_caption()
