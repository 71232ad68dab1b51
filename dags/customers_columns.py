"""Infers several things of each of yesterday's customers at once: a column for each field of a schema.

The schema's last rule is one that the engine cannot keep to while it generates. An answer against it is asked
for again, with what is wrong.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

COMPANY = {
    "type": "object",
    "properties": {
        "industry": {"enum": ["Law Firm", "Healthcare", "Technology", "Retail", "Finance", "Other"]},
        "second_industry": {"enum": ["Law Firm", "Healthcare", "Technology", "Retail", "Finance", "None"]},
        "confidence": {"enum": ["high", "low"]},
    },
    "required": ["industry", "second_industry", "confidence"],
    "additionalProperties": False,
    "not": {"properties": {"industry": {"const": "Other"}, "confidence": {"const": "high"}}},
}


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["ray-llm"],
)
def customers_columns() -> None:
    RayLLMBatchOperator(
        task_id="describe_company",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers") + "_columns",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        prompt="Describe this company in JSON: {Company}",
        output_schema=COMPANY,
        output_mode="columns",
        quality={"repair": 1, "max_invalid": 0.02},
        sampling_params={"temperature": 0, "max_tokens": 64},
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_columns()
