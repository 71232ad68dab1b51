"""A partitioned DAG: the run's `partition_key` is the slice key, verbatim.

With `run_offset=-1` and a date `key_format`, the run at midnight gets the day that just ended as its key.
Partitioned runs have neither logical date nor data interval: use `{slice}`, as `{{ ds }}` fails.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronPartitionTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip


@dag(
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d", run_offset=-1),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["ray-llm"],
)
def customers_partitioned() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        # A dataset's root: the job reads only rows (here: the Hive folder) whose `ds` is the slice key.
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers"),
        source={"column": "ds"},
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_partitioned",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_partitioned()
