"""The decorated function builds the request of each row, on the cluster: for more than a template can do.

Its parameters name the columns that it needs. The code that it uses of this file is shipped with it and
is part of the fingerprint, like a prompt.
"""

from __future__ import annotations

import os
import re

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from airflow_provider_raydatallm.decorators.ray_llm_batch import ray_llm_batch_task

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip
LEGAL_FORM = re.compile(r",? (Inc|LLC|Ltd|PLC)\.?$")


def plain_name(company: str) -> str:
    return LEGAL_FORM.sub("", company.strip())


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["ray-llm"],
)
def customers_decorated() -> None:
    @ray_llm_batch_task(  # as @task.ray_llm_batch, and type checkers understand its calls
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers") + "_decorated",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        choices=INDUSTRIES,
        sampling_params={"temperature": 0, "max_tokens": 16},
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
    )
    def infer_industry(Company: str) -> str:
        return f"What industry is this company in: {plain_name(Company)}"

    infer_industry()  # each row sets the parameters


customers_decorated()
