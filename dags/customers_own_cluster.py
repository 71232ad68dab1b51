"""Finds the industry of each day's new customers on a Ray cluster that is made for the day, and ends with it.

The connection `ray_kuberay` has the host `kuberay` (`ray://kuberay`); `clusters/l4.yaml` says what KubeRay
makes. No cluster runs, and no GPU is paid for, but while a slice is answered.
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
def customers_own_cluster() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        ray_conn_id="ray_kuberay",
        cluster={"template": "clusters/l4.yaml", "namespace": "ml", "lifetime": "6h"},
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_own_cluster",
        model_source="keywords",
        prompt="{Company}",
        choices=["Law", "Dental", "Software", "Bank"],
        output_column="industry",
        engine="keywords:Keywords",
        code_paths=["engines/keywords.py"],
        quality={"max_quarantine": 1.0},  # names that say nothing
        limits={"queue": "2h"},  # with the time that nodes take to come
        deferrable=True,
        retries=2,
    )


customers_own_cluster()
