"""Scores yesterday's search results with a reranker: how well each text answers the query that found it."""

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
def search_score() -> None:
    RayLLMBatchOperator(
        task_id="score_results",
        task="score",
        input_path=os.environ.get("RAY_LLM_EXAMPLE_SEARCHES", "s3://lake/searches") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_EXAMPLE_SEARCHES_OUT", "s3://lake/searches_scored"),
        model_source=os.environ.get("RAY_LLM_EXAMPLE_RERANKER", "BAAI/bge-reranker-base"),
        query="{query}",
        prompt="{result}",
        output_column="score",
    )


search_score()
