"""Answers a year of days:

    airflow backfill create --dag-id customers_backfill --from-date 2026-01-01 --to-date 2026-12-31

The tasks wait in the triggerer, where they take no worker slot, and a handful of their jobs wait on the
cluster; as many days run at once as it has room for. A published day is left as it is and costs no engine
start. If the prompt changes, new answers replace the old ones day by
day (`rerun.on_config_change`).
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=16,
    default_args={
        "retries": 3,
        "retry_delay": pendulum.duration(minutes=5),
        "retry_exponential_backoff": 2.0,
    },
    tags=["ray-llm"],
)
def customers_backfill() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        deferrable=True,
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched"),
        source={"on_empty": "skip"},
        rerun={"on_config_change": "recompute"},
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_backfill()
