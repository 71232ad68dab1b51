"""Has a model write texts of a form about yesterday's customers: by a regular expression, and by a grammar.

A grammar may contain itself, as lists and brackets do; where that is not needed, a regular expression is
easier to read. The engine keeps to both while it generates, and each answer is checked once more.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

CONDITION = """\
root ::= value (" and " value)?
value ::= word | "not (" value ")"
word ::= "large" | "small" | "old" | "new"
"""


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["ray-llm"],
)
def customers_patterns() -> None:
    table = os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers")
    RayLLMBatchOperator(
        task_id="guess_founding",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=table + "_founding",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        prompt="In which year was the company {Company} founded?",
        regex="(about |before )?(19|20)[0-9]{2}",
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="founded",
        engine={"kwargs": {"max_model_len": 256}},
    )
    RayLLMBatchOperator(
        task_id="rate_company",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=table + "_rating",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        prompt="Is the company {Company} large, and is it old? Answer as a condition.",
        grammar=CONDITION,
        sampling_params={"temperature": 0, "max_tokens": 64},
        output_column="rating",
        engine={"kwargs": {"max_model_len": 256}},
    )


customers_patterns()
