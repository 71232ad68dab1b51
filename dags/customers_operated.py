"""A daily table with the Params that the page's actions and the trigger form use.

The page in Airflow's UI ("Ray LLM") starts runs of this DAG: to answer the rows in quarantine again
(`retry_quarantined`), to accept a day with many of them (`max_quarantine`), or to answer all rows anew
(`force`). People set the same in the trigger form, or try a few rows first (`max_rows`).
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.slice_params import slice_params

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip
MODELS = [os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"), "Qwen/Qwen2.5-1.5B-Instruct"]


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params=slice_params(models=MODELS),
    tags=["ray-llm"],
)
def customers_operated() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_operated",
        model_source="{{ params.model }}",
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        output_column="industry",
        source={"max_rows": "{{ params.max_rows }}"},
        rerun={
            "on_config_change": "recompute",
            "retry_quarantined": "{{ params.retry_quarantined }}",
            "force": "{{ params.force }}",
        },
        quality={"max_quarantine": "{{ params.max_quarantine }}"},
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_operated()
