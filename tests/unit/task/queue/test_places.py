"""Tasks that hold their submission, against a real HTTP server that lists a cluster's jobs."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_raydatallm.contract.job.phase import ADMITTED, PHASE, WAITING
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayLLMJobError,
    RayQueueTimeoutError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.task.queue import gate as submission_gate
from airflow_provider_raydatallm.task.queue import places as submission_queue
from airflow_provider_raydatallm.task.queue.gate import SubmissionGate
from airflow_provider_raydatallm.task.queue.places import QueuePlace, raise_error_of, to_event
from airflow_provider_raydatallm.triggers.submission_turn import SubmissionTurnTrigger
from tests.support.fake_cluster import FakeCluster, Log

LIMIT = 3


def jobs(phases: list[str]) -> list[dict[str, Any]]:
    """Jobs of these phases that have not ended, and others."""
    live = [{"status": "RUNNING", "metadata": {PHASE: phase}} for phase in phases]
    ended = {"status": "SUCCEEDED", "metadata": {PHASE: WAITING}}
    return [*live, ended, {"status": "RUNNING", "metadata": None}]


def listed(phases: list[str]) -> list[dict[str, Any]]:
    return [{**job, "submission_id": f"j{i}"} for i, job in enumerate(jobs(phases))]


def looks(cluster: FakeCluster) -> int:
    """At its jobs, so far."""
    return cluster.count("/api/v0/jobs")


@pytest.fixture
def cluster(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCluster:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(submission_queue, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(submission_queue, "_LOOK_COSTS", 0.0)  # a busy machine may take long to look
    monkeypatch.setattr(submission_gate, "_TRY_SECONDS", 0.05)
    monkeypatch.setattr(submission_gate, "_LOCK_SECONDS", 0.01)
    monkeypatch.setenv("AIRFLOW__RAY_LLM__MAX_WAITING_JOBS", str(LIMIT))
    return cluster


def place(task: str = "t", **changes: Any) -> QueuePlace:
    return replace(QueuePlace("ray_default", task, time.time(), 60.0, None, 60.0), **changes)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def closing() -> Any:
        try:
            return await work
        finally:
            await close_clients()

    return asyncio.run(closing())


async def enter(
    place: QueuePlace, *, has_turn: bool = False, holds: bool = False, log: Log | None = None
) -> bool:
    with contextlib.closing(SubmissionGate(place, log or Log())) as gate:
        return await gate.enter(has_turn=has_turn, holds=holds)


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.01)


async def fire(place: QueuePlace) -> dict[str, Any]:
    return (await anext(SubmissionTurnTrigger(asdict(place)).run())).payload  # type: ignore[no-any-return]


# --- On a worker ---


@pytest.mark.parametrize(
    ("phases", "newcomer", "called"),
    [
        ([], True, True),
        ([ADMITTED] * 9, True, True),
        ([WAITING], False, True),
        ([WAITING] * LIMIT, False, False),
    ],
)
def test_task_submits_at_once_where_no_job_waits_and_passes_nobody_in_line(
    cluster: FakeCluster, phases: list[str], newcomer: bool, called: bool
) -> None:
    cluster.jobs = jobs(phases)
    assert run(enter(place())) is newcomer
    assert run(enter(place(), has_turn=True)) is called


def test_tasks_of_one_machine_share_a_look_and_take_no_more_places_than_there_are(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_queue, "_LOOK_SECONDS", 60.0)

    async def all_at_once() -> list[Any]:
        entries = (enter(place(queue_timeout=1.0), holds=True) for _ in range(LIMIT + 2))
        return await asyncio.gather(*entries, return_exceptions=True)

    entered = run(all_at_once())
    assert sum(e is True for e in entered) == LIMIT
    assert sum(isinstance(e, RayQueueTimeoutError) for e in entered) == 2
    assert looks(cluster) == 1


def test_task_that_holds_on_its_worker_goes_on_when_there_is_a_place_and_says_what_it_waits_for(
    cluster: FakeCluster,
) -> None:
    log, cluster.jobs = Log(), jobs([WAITING] * LIMIT)

    async def held() -> bool:
        holding = asyncio.create_task(enter(place(), holds=True, log=log))
        await until(lambda: looks(cluster) > 1)
        assert not holding.done()
        cluster.jobs = jobs([WAITING, WAITING, ADMITTED])
        return await holding

    assert run(held())
    assert log.lines == [
        "Waiting to submit the job: 3 jobs wait for room on the cluster (max_waiting_jobs is 3)"
    ]


def test_cluster_that_is_away_is_waited_for_and_one_that_refuses_the_token_is_not(
    cluster: FakeCluster,
) -> None:
    cluster.http = 503
    with pytest.raises(RayUnreachableError):
        run(enter(place(reconnect_timeout=0.2)))
    cluster.http = 401
    with pytest.raises(RayConnectionError):
        run(enter(place(reconnect_timeout=60)))


def test_proxy_that_refuses_the_list_of_jobs_stops_no_submission(cluster: FakeCluster) -> None:
    log, cluster.jobs = Log(), listed([WAITING] * LIMIT)
    cluster.refused = ("/api/v0/",)  # Ray's Jobs API, through which jobs are submitted, lists them too
    assert run(enter(place(), log=log)) is False
    assert log.lines == []
    cluster.refused = ("/api/v0/", "/api/jobs/")
    time.sleep(0.3)
    assert run(enter(place(), log=log)) is True
    assert "error" not in run(fire(place()))
    [line] = log.lines
    assert line.startswith("The cluster does not let this task list its jobs")
    assert line.endswith("HTTP 403: RBAC: access denied")


# --- In the triggerer ---


def test_deferred_tasks_are_called_in_the_order_in_which_they_came_and_share_their_looks(
    cluster: FakeCluster,
) -> None:
    cluster.jobs = jobs([WAITING] * LIMIT)
    order: list[str] = []

    async def in_line(task: str, since: float) -> None:
        place_in_line = place(task, since=since)
        assert await fire(place_in_line) == {"place": asdict(place_in_line)}
        order.append(task)

    async def line() -> None:
        now = time.time()
        tasks = [asyncio.create_task(in_line(f"t{i}", now - i)) for i in range(4)]
        await until(lambda: looks(cluster) > 1)
        assert (order, looks(cluster)) == ([], 2)
        cluster.jobs = jobs([WAITING] * (LIMIT - 1))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert order == ["t3"]
        before = looks(cluster)
        await until(lambda: looks(cluster) > before + 1)
        assert order == ["t3"]  # its place is kept for its job
        cluster.jobs = jobs([])
        before = looks(cluster)
        await until(lambda: looks(cluster) > before + 2)
        assert (order[0], sorted(order)) == ("t3", ["t1", "t2", "t3"])
        for task in tasks:
            task.cancel()  # as when a task that holds its submission is cleared
        await asyncio.wait(tasks)

    run(line())


def test_wait_that_is_too_long_fails_the_task_as_it_does_on_the_cluster(cluster: FakeCluster) -> None:
    cluster.jobs = jobs([WAITING] * LIMIT)
    with pytest.raises(RayQueueTimeoutError, match=r"no room on the cluster within limits.queue"):
        raise_error_of(run(fire(place(queue_timeout=0.3))))
    with pytest.raises(AirflowTaskTimeout, match="execution_timeout"):
        raise_error_of(run(fire(place(deadline=time.time() + 0.3))))


def test_deferred_task_bears_a_cluster_that_is_away_or_refuses_it_for_reconnect_timeout(
    cluster: FakeCluster,
) -> None:
    cluster.http = 401
    with pytest.raises(RayConnectionError):
        raise_error_of(run(fire(place(reconnect_timeout=0.3))))

    async def back() -> dict[str, Any]:
        holding = asyncio.create_task(fire(place()))
        await until(lambda: looks(cluster) > 1)
        cluster.http = None
        return await holding

    assert "error" not in run(back())


def test_embedded_ray_of_another_machine_is_refused_at_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", str(tmp_path / "head"))
    with pytest.raises(RayConnectionError, match="deferrable=False"):
        raise_error_of(run(fire(place(local_head="of the worker's machine"))))
    assert looks(cluster) == 0


def test_error_that_a_newer_triggerer_found_fails_the_task_and_is_retried() -> None:
    assert to_event(None) == {}
    with pytest.raises(RayLLMJobError, match="of a later version"):
        raise_error_of({"error": "SomethingNew", "message": "of a later version"})
