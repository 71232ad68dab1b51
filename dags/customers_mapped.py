"""Answers several slices in one run: dynamic task mapping over slice keys, from a form with two dates.

The UI shows the slice key of each mapped task.
"""

from __future__ import annotations

import os

from airflow.sdk import dag, get_current_context, task

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.slice_params import slice_params, slices_asked

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip


@task
def days() -> list[str]:
    return slices_asked(get_current_context()["params"])


@dag(
    schedule=None,
    params=slice_params(ranges=True),
    tags=["ray-llm"],
)
def customers_mapped() -> None:
    RayLLMBatchOperator.partial(
        task_id="infer_industry",
        max_active_tis_per_dagrun=1,
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched"),
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="industry",
        source={"max_rows": "{{ params.max_rows }}"},
        rerun={"retry_quarantined": "{{ params.retry_quarantined }}", "force": "{{ params.force }}"},
        quality={"max_quarantine": "{{ params.max_quarantine }}"},
        engine={"kwargs": {"max_model_len": 256}},
    ).expand(slice_key=days())


customers_mapped()
