"""Runs by hand, with a form in the UI for the day, the prompt and the number of rows.

The Param `slice` is the slice key. With a number of rows it is a trial: a table of each
person's own, in `<table>.trial/`, which never touches the published one.
"""

from __future__ import annotations

import os

from airflow.sdk import Param, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator


@dag(
    schedule=None,
    params={
        "slice": Param(
            "2026-01-01", type="string", format="date", title="Day", description="The day to answer"
        ),
        "prompt": Param(
            "What industry is this company in: {Company}",
            type="string",
            title="Question",
            description="Names in braces stand for the row's values",
        ),
        "max_rows": Param(
            100, type=["integer", "null"], minimum=1, title="Rows", description="Empty: all rows of the day"
        ),
    },
    tags=["ray-llm"],
)
def customers_form() -> None:
    RayLLMBatchOperator(
        task_id="ask",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_form",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="{{ params.prompt }}",
        source={"max_rows": "{{ params.max_rows }}", "trial": "{{ dag_run.triggering_user_name }}"},
        # A new prompt replaces the answers to the old one.
        rerun={"on_config_change": "recompute"},
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="answer",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_form()
