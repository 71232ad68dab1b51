"""Ends once an hour the Ray clusters whose tasks have ended and left them.

Tasks end their own; this is for those that were killed or marked, or whose Airflow died.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import dag

from airflow_provider_raydatallm.operators.ray_cluster import CleanRayClustersOperator


@dag(
    schedule="@hourly",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["ray-llm"],
)
def clean_clusters() -> None:
    CleanRayClustersOperator(task_id="clean", namespace="ml", retries=2)


clean_clusters()
