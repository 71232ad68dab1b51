"""DAGs that send mails about slices, and one that waits for a slice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, Param

from airflow_provider_raydatallm.notifications.slice_notifier import SliceNotifier
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.slice_params import slice_params
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor

ROOT, ENGINES = os.environ["DURABLE_ROOT"], os.environ["DURABLE_ENGINES"].split(os.pathsep)
SMTP = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"


def mail(who: str) -> dict[str, Any]:
    return {
        "to": "on-duty@example.com",
        "subject": who + " {{ run_id or dag_run.dag_run_id }}: {{ slices.title }}",
        "html_content": "{{ slices.text }}",
    }


def notifier(who: str) -> SliceNotifier:
    return SliceNotifier(SmtpNotifier, **mail(who))


def ask(gates: Sequence[Any] = (), **more: Any) -> None:
    RayLLMBatchOperator(
        task_id="ask", input_path=ROOT + "/{{ params.table }}/in/ds={slice}/",
        output_path=ROOT + "/{{ params.table }}/out", prompt="{name}",
        model_source="{{ params.model }}", engine={"kind": "held_engine:HeldEngine", "batch_size": 10},
        code_paths=ENGINES, poll_interval=1.0, source={"max_rows": "{{ params.max_rows }}"},
        quality={"max_quarantine": "{{ params.max_quarantine }}", "gates": list(gates)},
        rerun={"retry_quarantined": "{{ params.retry_quarantined }}", "force": "{{ params.force }}"},
        on_success_callback=notifier("task"), on_failure_callback=notifier("task"), **more,
    )  # fmt: skip


params = {"table": Param("notified", type="string"), **slice_params(models=["stub/stub", "stub/other"])}
for mode in ("waiting", "deferred"):
    callbacks = {"on_success_callback": notifier("dag"), "on_failure_callback": notifier("dag")}
    with DAG(f"notified_{mode}", params=params, schedule=None, max_active_runs=8, **callbacks):
        ask(deferrable=mode == "deferred")

late = AsyncCallback(SliceNotifier, kwargs={"notifier": SMTP, "only_if_late": True, **mail("deadline")})
missed = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=1), late)
with DAG("overdue_waiting", params=params, schedule=None, max_active_runs=8, deadline=missed):
    ask(deferrable=False, limits={"finish_by": 1})

with DAG("unanswered", params=params, schedule=None, max_active_runs=8, deadline=missed):
    ask(deferrable=False, gates=[{"of": "rows", "max": 1, "then": "hold"}])

with DAG("awaiting", params=params, schedule=None, start_date=pendulum.datetime(2025, 1, 1, tz="UTC")):
    RayLLMSliceSensor(
        task_id="ask", output_path=ROOT + "/{{ params.table }}/out", min_rows=2, max_quarantine=0.5,
        deferrable=True, poke_interval=1, timeout=600,
    )  # fmt: skip
