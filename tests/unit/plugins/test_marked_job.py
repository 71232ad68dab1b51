"""Which job a mark stops: behind a real socket, with a record as the state store has it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow import settings
from airflow.models import import_all_models
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_provider_raydatallm.clusters.embedded.head import head_status
from airflow_provider_raydatallm.exceptions import RayUnreachableError
from airflow_provider_raydatallm.plugins import marked_job
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt
from airflow_provider_raydatallm.task.job.record import JobRecord
from tests.support.http_server import Request, http_server

TASK = TaskAttempt("d", "t", "r", -1, 2)
RECORD = JobRecord("submitted", "connection:c", "d-t-2026-01-01-uuid", "n", "h", "f", try_number=2)
METADATA = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": "-1", "try_number": "1"}


class Cluster:
    """Has one job."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []
        self.address = ""

    def respond(self, request: Request) -> tuple[int, Any]:
        self.calls.append((request.command, request.path))
        return 200, {"status": "RUNNING", "metadata": METADATA, "stopped": True, **self.job}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    with http_server(cluster.respond) as cluster.address:
        yield cluster


def stop(record: JobRecord | None, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "ray", "host": host}))
    monkeypatch.setattr(marked_job, "_read_record", lambda task: record)
    asyncio.run(marked_job.stop_marked_job(TASK))


@pytest.mark.parametrize(("case", "record", "job", "calls"), [
    ("its own job", RECORD, {}, ["GET", "POST"]),
    ("the job of the try before", replace(RECORD, try_number=1), {}, ["GET", "POST"]),
    ("a later try waits for it", replace(RECORD, try_number=3), {}, []),
    ("cancel_on_kill=False", replace(RECORD, commits_alone=True), {}, []),
    ("the slice is published", RECORD.conclude({}, 2), {}, []),
    ("the job ended", replace(RECORD, phase="ended"), {}, []),
    ("the job ended, which no try knows yet", RECORD, {"status": "SUCCEEDED"}, ["GET"]),
    ("the job of another run", RECORD, {"metadata": {**METADATA, "run_id": "other"}}, ["GET"]),
    ("somebody else's job", RECORD, {"metadata": None}, ["GET"]),
    ("a task of another provider", None, {}, []),
])  # fmt: skip
def test_mark_stops_the_job_of_the_task_and_no_other(
    case: str, record: JobRecord | None, job: dict[str, Any], calls: list[str],
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cluster.job, cluster.calls = job, []
    stop(record, cluster.address, monkeypatch)
    path = "/api/jobs/d-t-2026-01-01-uuid"
    assert cluster.calls == [(call, path + "/stop" * (call == "POST")) for call in calls], case


def test_mark_starts_no_embedded_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_job, "_STOP_SECONDS", 0.1)
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as folder:
        monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", folder)
        Path(folder, "id").write_text("of-here")
        with pytest.raises(RayUnreachableError, match="does not run"):
            stop(replace(RECORD, cluster="embedded:c@of-here"), "local", monkeypatch)
        assert head_status() is None


def test_run_has_the_tasks_that_began_and_did_not_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marking a run skips those that wait, and Airflow tells of the ones that ran by themselves."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    import_all_models()  # which its foreign keys name
    table = TaskInstance.__table__
    table.create(engine)
    states = [
        ("waits", "skipped", 2),
        ("done", "success", 1),
        ("later", "skipped", 0),
        ("failed", "failed", 1),
    ]
    with engine.begin() as connection:
        for run_id in ("r", "another"):
            for task_id, state, tries in states:
                row = {"dag_id": "d", "run_id": run_id, "task_id": task_id, "state": state, "pool": "p"}
                connection.execute(insert(table).values(**row, try_number=tries, max_tries=3))
    monkeypatch.setattr(settings, "NonScopedSession", sessionmaker(engine), raising=False)
    monkeypatch.setattr(settings, "Session", sessionmaker(engine), raising=False)
    assert set(marked_job.unfinished_attempts("d", "r")) == {
        TaskAttempt("d", "waits", "r", -1, 2), TaskAttempt("d", "failed", "r", -1, 1),
    }  # fmt: skip
