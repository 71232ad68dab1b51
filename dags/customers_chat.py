"""Drafts replies to yesterday's conversations with customers: three for each, and how probable the model
finds each of them, so that people see the unsure ones first.

The input has a column of conversations: lists of messages with a role and a content.
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
def customers_chat() -> None:
    RayLLMBatchOperator(
        task_id="draft_replies",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/conversations") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/conversations") + "_drafts",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        messages="talk",
        system_prompt="You answer customers in two sentences. Their number is {customer}.",
        sampling_params={"n": 3, "temperature": 0.8, "max_tokens": 64},
        logprobs=True,
        output_column="drafts",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_chat()
