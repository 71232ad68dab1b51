"""Finds the industry of customers on several days at once, all on one Ray cluster that is made for the run.

The first task has the cluster made, and the last ends it, whatever became of the days between them. The days
share one engine (`scope`), which loads the model once.
"""

from __future__ import annotations

import os

from airflow.sdk import dag, get_current_context, task

from airflow_provider_raydatallm.operators.ray_cluster import RayClusterOperator
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.slice_params import slice_params, slices_asked

CLUSTER = {"template": "clusters/l4.yaml", "namespace": "ml", "name": "customers", "lifetime": "12h"}


@task
def days() -> list[str]:
    return slices_asked(get_current_context()["params"])


@dag(schedule=None, params=slice_params(ranges=True), max_active_runs=1, tags=["ray-llm"])
def customers_shared_cluster() -> None:
    make = RayClusterOperator(task_id="make_cluster", ray_conn_id="ray_kuberay", cluster=CLUSTER)
    slices = RayLLMBatchOperator.partial(
        task_id="infer_industry",
        ray_conn_id="ray_kuberay",
        cluster=CLUSTER,
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_shared",
        model_source="Qwen/Qwen3-8B",
        prompt="What industry is this company in: {Company}",
        choices=["Law", "Dental", "Software", "Bank", "Other"],
        output_column="industry",
        engine={"accelerator": "L4", "scope": "shared"},
        deferrable=True,
    ).expand(slice_key=days())
    make >> slices >> make.ends("end_cluster")


customers_shared_cluster()
