"""The spec of a task that is not run: what it cannot hold is said."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronDataIntervalTimetable, task
from airflow.serialization.serialized_objects import DagSerialization
from pendulum import UTC, DateTime

from airflow_provider_raydatallm.cli.dag_spec import (
    make_scheduled,
    run_or_date,
    scheduled_interval,
    spec_and_note,
)
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from tests.support.context import context_of

ARGUMENTS: dict[str, Any] = {"input_path": "/in", "output_path": "/out", "model_source": "m"}


def export(make: Callable[[], Any]) -> tuple[dict[str, Any], str | None]:
    with DAG("daily", schedule=None):
        operator = make()
    context = {**context_of(operator), "task": operator, "logical_date": dt.datetime(2026, 1, 31)}
    context["ti"].xcom_pull = no_xcom
    spec, note = spec_and_note(operator, context)
    return json.loads(spec), note


def no_xcom(*arguments: Any, **options: Any) -> None:
    raise ImportError("cannot import name 'SUPERVISOR_COMMS' from 'airflow.sdk.execution_time.task_runner'")


def test_task_that_reads_an_xcom_is_named() -> None:
    prompt = "{{ ti.xcom_pull('before') }} {name}"
    with pytest.raises(ValueError, match="task 'ask' of DAG 'daily' uses an XCom, which only its run can"):
        export(lambda: RayLLMBatchOperator(task_id="ask", prompt=prompt, **ARGUMENTS))


@pytest.mark.slow
def test_code_that_a_spec_cannot_hold_is_told_of(tmp_path: Path) -> None:
    def decorated() -> Any:
        @task.ray_llm_batch(**ARGUMENTS)
        def ask(row: dict[str, Any]) -> str:
            return f"Who is {row['name']}?"

        return ask().operator

    spec, note = export(decorated)
    assert spec["slice_key"] == "2026-01-31"
    assert "cannot use this spec" in str(note)
    (tmp_path / "a2_rows.py").write_text("def prompt(row): return row['name']")
    code = {"preprocess": "a2_rows:prompt", "code_paths": [f"{tmp_path}/a2_rows.py"]}
    _, note = export(lambda: RayLLMBatchOperator(task_id="ask", **code, **ARGUMENTS))
    assert "need it on PYTHONPATH" in str(note)
    assert export(lambda: RayLLMBatchOperator(task_id="ask", prompt="{name}", **ARGUMENTS))[1] is None


def test_date_is_of_the_schedules_timezone_and_a_runs_id_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ["2026-02-01", "manual__2026"]
    monkeypatch.setattr(DagRun, "find", lambda dag_id, run_id: [run for run in runs if run == run_id])
    dates = {
        "2026-01-31": "2026-01-31T00:00:00-05:00", "2026-07-01T05": "2026-07-01T05:00:00-04:00",
        "2026-01-31T00:00+00:00": "2026-01-31T00:00+00:00", **{run: run for run in runs},
    }  # fmt: skip
    timetable = CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York")
    dag = DAG("d", schedule=AssetOrTimeSchedule(timetable=timetable, assets=[Asset("a")]))
    assert {text: run_or_date(dag, text) for text in dates} == dates


@pytest.mark.parametrize(
    ("schedule", "start", "end"),
    [
        ("0 0 * * 1-5", "2026-03-30", "2026-03-31"),
        ("0 0 * * 1-5", "2026-04-03", "2026-04-06"),
        ("0 0 1 * *", "2026-02-01", "2026-03-01"),
        (None, "2026-02-01", "2026-02-01"),
    ],
)
def test_interval_of_a_date_is_the_schedules(schedule: str | None, start: str, end: str) -> None:
    timetable = CronDataIntervalTimetable(schedule, timezone="UTC") if schedule else None
    dag = DAG("d", schedule=timetable, start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    begin = DateTime.fromisoformat(start).replace(tzinfo=UTC)
    interval = scheduled_interval(serialized.timetable, begin)
    assert [at.date().isoformat() for at in interval] == [start, end]


def test_date_of_which_a_person_made_a_run_is_that_slice_and_not_what_the_run_had() -> None:
    daily = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
    dag = DAG("d", schedule=daily, start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    date, before = DateTime(2026, 3, 5, tzinfo=UTC), DateTime(2026, 3, 4, tzinfo=UTC)
    run = DagRun(
        dag_id="d", run_id="manual__x", logical_date=date, data_interval=(before, date),
        conf={"slice": "2026-01-01"},
    )  # fmt: skip
    make_scheduled(run, serialized.timetable)
    assert (run.data_interval_start, run.data_interval_end) == (date, date.add(days=1))
    assert run.conf == {}
