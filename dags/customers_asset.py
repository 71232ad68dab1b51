"""A daily table as an asset: DAGs scheduled by it, such as `customers_by_industry`, run when a day is
published. "Materialize" of the asset asks for a day.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import Asset, CronDataIntervalTimetable, Param, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={
        "slice": Param(
            None, type=["null", "string"], format="date", title="Day", description="Empty: that of the run"
        )
    },
    tags=["ray-llm"],
)
def customers_asset() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_asset",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
        outlets=[Asset("customers_enriched")],
    )


customers_asset()
