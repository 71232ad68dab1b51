"""Removes once a day what KubeRay keeps of Ray clusters that have ended while their tasks were gone.

Tasks remove their own; this is for those whose Airflow died, or whose run was deleted, in between.
"""

from __future__ import annotations

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag


@dag(
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["ray-llm"],
)
def clean_clusters() -> None:
    BashOperator(task_id="clean", bash_command="airflow-ray-llm clusters clean --namespace ml", retries=2)


clean_clusters()
