"""Infers the industry of yesterday's new customers by a model that thinks first.

What it thought is a column of its own, and ends after 256 tokens: then it answers with one of the labels.
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
def customers_reasoned() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_reasoned",
        model_source=os.environ.get("RAY_LLM_EXAMPLE_THINKER", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
        reasoning_parser="deepseek_r1",
        prompt="What industry is this company in: {Company}",
        choices=["Law Firm", "Healthcare", "Technology", "Retail", "Finance", "Other"],
        sampling_params={"temperature": 0, "max_tokens": 512, "thinking_token_budget": 256},
        output_column="industry",
        engine={"kwargs": {"max_model_len": 1024}},
    )


customers_reasoned()
