"""Judges the industries of each day that `customers_asset` has published.

One run may have the events of several days: the task is mapped over all of them. A day that was published
before (`unchanged`) costs no token here either. Triggered by hand, the DAG takes its Param `slice`.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import Asset, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.slice_params import slice_params
from airflow_provider_raydatallm.operators.triggering_slices import triggering_slices


@dag(
    schedule=[Asset("customers_enriched")],
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"slice": slice_params()["slice"]},
    tags=["ray-llm"],
)
def customers_judged() -> None:
    output = os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched")
    RayLLMBatchOperator.partial(
        task_id="judge",
        input_path=f"{output}_asset/ds={{slice}}/",
        output_path=f"{output}_judged",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        prompt="Is {industry} the industry of {Company}?",
        choices=["yes", "no"],
        output_column="right",
        sampling_params={"temperature": 0, "max_tokens": 4},
        engine={"kwargs": {"max_model_len": 256}},
    ).expand(slice_key=triggering_slices())


customers_judged()
