"""Mails about slices, from each process of Airflow that sends them, and the sensor in a real triggerer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.in_process import job_of, run_in_process
from tests.support.smtp_server import MailServer
from tests.support.tables import ROWS, Table

DAY = "2025-01-01"
FAILING = 3


@pytest.fixture
def start_triggerer(airflow: Airflow) -> Iterator[Callable[[], None]]:
    """No triggerer lives until this is called, or the test ends."""
    airflow.kill("triggerer")
    yield lambda: airflow.start("triggerer")
    if not airflow.runs("triggerer"):
        airflow.start("triggerer")


def mail(mails: MailServer, who: str, task: Task) -> str:
    """The mail of a run's task, DAG or deadline, for which this waits. A lost worker is noticed by Airflow's
    scheduler and by its executor: there may be two."""
    return wait_for(
        lambda: mails.with_subject(f"{who} {task.run_id}:") or None, LIMIT, f"a mail of {who} {task}",
        lambda: [str(m["Subject"]) for m in mails.mails],
    )[0]  # fmt: skip


def test_mails_of_slices_that_are_published_and_that_fail(
    airflow: Airflow, mails: MailServer, make_table: Callable[..., Table]
) -> None:
    """A task's mails are its own process's, a DAG's the DAG processor's."""
    table = make_table(name="notified")
    table.write(DAY, names=[f"fail Jane {i}" if i < FAILING else f"Jane {i}" for i in range(ROWS)])
    done = airflow.api.trigger("notified_deferred", conf={"table": table.name, "slice": DAY})
    failed = airflow.api.trigger("notified_deferred")  # for no day
    counts = f"{ROWS} rows planned = {ROWS - FAILING} answered + {FAILING} in quarantine (7.5%, 3 ValueError)"
    for who in ("task", "dag"):
        text = mail(mails, who, done)
        assert f"notified_deferred.ask: slice {DAY} is published, 3 rows in quarantine" in text
        assert counts in text
        assert f"Slice: {airflow.url}/plugin/ray-llm/dags/notified_deferred/tasks/ask/runs/" in text
        assert "Ray job: http" in text
    for who in ("task", "dag"):
        text = mail(mails, who, failed)
        assert "notified_deferred.ask: the slice failed" in text
        assert "no slice key" in text
    everything = mails.with_subject("")
    assert len(everything) >= 4
    assert "Jane" not in "".join(everything)


@pytest.mark.long
def test_mails_of_a_slice_that_will_be_late_and_then_loses_its_worker(
    airflow: Airflow, mails: MailServer, make_table: Callable[..., Table], start_triggerer: Callable[[], None]
) -> None:
    """A deadline's mail is the triggerer's, that of a lost worker the DAG processor's."""
    table = make_table(DAY, name="overdue")
    table.hold(DAY, 1)
    task = airflow.api.trigger("overdue_waiting", conf={"table": table.name, "slice": DAY})
    file = Path(f"{table.folder}/out.ray_llm/ds={DAY}/progress.json")

    def is_late() -> bool:
        return file.exists() and (json.loads(file.read_text()).get("late_s") or 0) > 0

    wait_for(lambda: is_late() or None, LIMIT, "the job to know that it is late")
    start_triggerer()
    text = mail(mails, "deadline", task)
    assert f"overdue_waiting.ask: slice {DAY} is running" in text
    assert f"answering: 10 of {ROWS} rows" in text
    assert "s later than finish_by" in text

    airflow.worker(task).kill()
    text = mail(mails, "task", task)
    assert f"overdue_waiting.ask: slice {DAY} failed" in text
    assert "ended without an error of its own" in text
    assert "Ray job: http" in text
    table.release(DAY)


@pytest.mark.long
def test_deadline_reminds_of_a_slice_that_waits_for_a_person(
    airflow: Airflow, mails: MailServer, make_table: Callable[..., Table], start_triggerer: Callable[[], None]
) -> None:
    table = make_table(DAY, name="unanswered")
    task = airflow.api.trigger("unanswered", conf={"table": table.name, "slice": DAY})
    airflow.api.wait_asked(task)
    start_triggerer()
    text = mail(mails, "deadline", task)
    assert f"unanswered.ask: slice {DAY} waits for a person, who decides whether it is published" in text
    assert f"Gate: rows is {ROWS}, above max 1 (held)" in text
    assert f"Slice: {airflow.url}/plugin/ray-llm/dags/unanswered/tasks/ask/runs/" in text


@pytest.mark.long
def test_sensor_waits_past_too_few_rows_and_a_killed_triggerer_for_a_slice_of_another_program(
    airflow: Airflow, make_table: Callable[..., Table]
) -> None:
    table = make_table(name="awaited")
    task = airflow.api.trigger("awaiting", conf={"table": table.name, "slice": DAY})
    triggerer = airflow.triggerer_of(task)
    job = job_of(
        slice_key=DAY, input_path=f"{table.folder}/in/ds={DAY}", output_path=f"{table.folder}/out",
        rerun__on_input_change="recompute", quality__max_quarantine=1,
    )  # fmt: skip
    table.write(DAY, names=["fail"] * (ROWS - 1) + ["one"])
    assert run_in_process(job).counts.succeeded == 1
    airflow.api.wait_logged(task, "has 1 rows; 2 are wanted")
    airflow.kill(triggerer)
    (table.folder / "in" / f"ds={DAY}" / "rows.parquet").unlink()
    (table.folder / "in" / f"ds={DAY}").rmdir()
    table.write(DAY)
    assert run_in_process(job).counts.succeeded == ROWS
    airflow.start(triggerer)
    assert airflow.api.finish(task) == "success"
    assert airflow.api.xcom(task)["counts"]["succeeded"] == ROWS
    assert airflow.api.get(task)["try_number"] == 1
