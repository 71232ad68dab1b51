"""Which job a mark stops: behind a real socket, with a record as the state store has it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_raydatallm.exceptions import RayUnreachableError
from airflow_provider_raydatallm.local_ray.head import head_status
from airflow_provider_raydatallm.plugins import marked_job
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt
from airflow_provider_raydatallm.task.job.record import JobRecord
from tests.support.http_server import Request, http_server

TASK = TaskAttempt("d", "t", "r", -1, 2)
RECORD = JobRecord("submitted", "c", "d-t-2026-01-01-uuid", "n", "h", "f", try_number=2)
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
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as folder:
        monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", folder)
        with pytest.raises(RayUnreachableError, match="does not run"):
            stop(RECORD, "local", monkeypatch)
        assert head_status() is None
