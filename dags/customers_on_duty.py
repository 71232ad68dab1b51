"""A daily table with people on duty: a mail when a day failed, and at six, if it will not be ready by seven.

Airflow's deadlines are times, fixed when a run is made. Whether the day is late, the callback
reads from the running job's progress, which compares it with `limits.finish_by`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import (  # type: ignore[attr-defined]  # Airflow's stub lacks some
    AsyncCallback,
    CronDataIntervalTimetable,
    DeadlineAlert,
    DeadlineReference,
    dag,
)

from airflow_provider_raydatallm.notifications.slice_notifier import SliceNotifier
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

INDUSTRIES = [
    "Law Firm", "Healthcare", "Technology", "Retail", "Consulting", "Manufacturing", "Finance",
    "Real Estate", "Other",
]  # fmt: skip
MAIL: dict[str, Any] = {
    "to": "on-duty@example.com",
    "subject": "{{ slices.title }}",
    "html_content": "{{ slices.html }}",
}
SMTP = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # The logical date is the day's midnight, so this is six o'clock on the next day.
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
        interval=timedelta(days=1, hours=6),
        callback=AsyncCallback(SliceNotifier, kwargs={"notifier": SMTP, "only_if_late": True, **MAIL}),
    ),
    tags=["ray-llm"],
)
def customers_on_duty() -> None:
    RayLLMBatchOperator(
        task_id="infer_industry",
        input_path=os.environ.get("RAY_LLM_DEMO_INPUT", "s3://lake/customers") + "/ds={slice}/",
        output_path=os.environ.get("RAY_LLM_DEMO_OUTPUT", "s3://lake/customers_enriched") + "_on_duty",
        model_source=os.environ.get("RAY_LLM_DEMO_MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {Company}",
        choices=INDUSTRIES,
        output_column="industry",
        engine={"kwargs": {"max_model_len": 256}},
        limits={"finish_by": "07:00"},
        deferrable=True,
        on_failure_callback=SliceNotifier(SmtpNotifier, **MAIL),
    )


customers_on_duty()
