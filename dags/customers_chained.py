"""A table made of another one: whenever `customers_asset` has published days, each of them is processed here,
however many events have come meanwhile. A person who triggers a run chooses the day.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import Asset, Param, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.triggering_slices import triggering_slices

OUTPUT = os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched")


@dag(
    schedule=[Asset("customers_enriched")],
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={
        "slice": Param(
            None, type=["null", "string"], format="date", title="Day", description="Of a run by hand"
        )
    },
    tags=["ray-llm"],
)
def customers_chained() -> None:
    RayLLMBatchOperator.partial(
        task_id="infer_audience",
        max_active_tis_per_dagrun=1,
        input_path=OUTPUT + "_asset/ds={slice}/",
        output_path=OUTPUT + "_chained",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        prompt="{Company} is in the industry {industry}. Who are its customers?",
        choices=["People", "Companies", "Both"],
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="audience",
        # A day that is published anew is processed anew.
        rerun="recompute",
        engine={"kwargs": {"max_model_len": 256}},
    ).expand(slice_key=triggering_slices())


customers_chained()
