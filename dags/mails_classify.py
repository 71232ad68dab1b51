"""Sorts yesterday's mails with a classification head: a small model that was trained for these labels.

The labels are those of the model's `config.json`. Beside each stands how sure the model is, and what it would
have said next: mails that it is not sure of are easily found.
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
    max_active_runs=4,
    default_args={"retries": 2, "retry_delay": pendulum.duration(minutes=5)},
    tags=["ray-llm"],
)
def mails_classify() -> None:
    RayLLMBatchOperator(
        task_id="sort_mails",
        task="classify",
        input_path=os.environ.get("RAY_LLM_EXAMPLE_MAILS", "s3://lake/mails") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_EXAMPLE_MAILS_OUT", "s3://lake/mails_sorted"),
        model_source=os.environ.get(
            "RAY_LLM_EXAMPLE_MAILS_MODEL", "mrm8488/bert-tiny-finetuned-sms-spam-detection"
        ),
        # As the model's authors call the labels of its head, which its files leave unnamed.
        choices=["ham", "spam"],
        prompt="{text}",
        output_column="kind",
        labels={"confidence": True},
        quality={"on_too_long": "truncate"},
        engine={"kwargs": {"max_model_len": 256}},
    )


mails_classify()
