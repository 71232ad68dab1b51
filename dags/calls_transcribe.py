"""Writes down yesterday's calls, which a table names by their addresses.

Recordings are read, checked, decoded and cut into pieces of 30 seconds on CPUs beside the engine. One that is
broken, too long or not there goes to quarantine, and stops no other.
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
def calls_transcribe() -> None:
    RayLLMBatchOperator(
        task_id="transcribe_calls",
        task="transcribe",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/calls") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/calls_transcribed"),
        model_source=os.environ.get("RAY_LLM_EXAMPLE_SPEECH", "openai/whisper-large-v3-turbo"),
        audio={
            "column": "recording",
            "language": "en",
            "max_seconds": 600,
            "sources": [os.environ.get("RAY_LLM_EXAMPLE_RECORDINGS", "s3://lake/call-recordings/")],
        },
        output_column="transcript",
        engine={"scope": "shared"},
    )


calls_transcribe()
