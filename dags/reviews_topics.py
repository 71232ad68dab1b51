"""Finds what yesterday's reviews are about: each has several topics, one, or none.

The model is asked about each topic whether it applies. How probable each is stands beside, so that a query
can set a limit of its own.
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
def reviews_topics() -> None:
    RayLLMBatchOperator(
        task_id="find_topics",
        input_path=os.environ.get("RAY_LLM_EXAMPLE_REVIEWS", "s3://lake/reviews") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_EXAMPLE_REVIEWS_OUT", "s3://lake/reviews_topics"),
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You label reviews by the topics that they mention.",
        prompt="Review: {review}",
        choices=["price", "delivery", "quality", "customer service"],
        labels={"multi": True, "confidence": True},
        output_column="topics",
        engine={"kwargs": {"max_model_len": 256}},
    )


reviews_topics()
