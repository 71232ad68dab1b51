"""Has a deployment of Ray Serve answer, which runs on the cluster that runs the slice.

Serve's proxy on each node is an endpoint, here of an application with OpenAI's API below `/v1`, such as
`ray.serve.llm` builds. It is asked without a key.
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
def customers_serve() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_by_serve",
        model_source="chat",  # the name by which the deployment knows its model
        prompt="What industry is this company in: {Company}",
        sampling_params={"temperature": 0, "max_tokens": 24},
        output_column="industry",
        engine={"kind": "http", "url": os.environ.get("RAY_LLM_EXAMPLE_SERVE", "http://127.0.0.1:8000/v1")},
    )


customers_serve()
