"""Tasks that hold their submission, against a real HTTP server that lists a cluster's jobs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_raydatallm.contract.job.phase import ADMITTED, BEHIND, PHASE, WAITING
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayLLMJobError,
    RayQueueTimeoutError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.queue import gate as submission_gate
from airflow_provider_raydatallm.task.queue import line as submission_line
from airflow_provider_raydatallm.task.queue import places as submission_queue
from airflow_provider_raydatallm.task.queue.gate import SubmissionGate
from airflow_provider_raydatallm.task.queue.places import (
    QueuePlace,
    Turn,
    error_event,
    jobs_text,
    raise_error_of,
)
from airflow_provider_raydatallm.triggers.submission_turn import SubmissionTurnTrigger
from tests.support.fake_cluster import FakeCluster, Log
from tests.support.marks import long
from tests.support.own_process import in_own_process

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
    came = QueuePlace("ray_default", task, time.time(), 60.0, None, 60.0, "connection:ray_default")
    return replace(came, **changes)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "behind", "newcomer", "called"),
    [
        ([], (), True, True),
        ([ADMITTED] * 9, (), True, True),
        ([WAITING] * (LIMIT - 1), (), True, True),
        ([WAITING, WAITING], (0, 4), False, True),  # tasks stood in line when the last one was called
        ([WAITING, WAITING], (4, 0), True, True),  # it was the last of them
        ([WAITING, ADMITTED], (0, 4), True, True),
        ([WAITING] * LIMIT, (), False, False),
    ],
)
def test_task_takes_a_free_place_at_once_and_passes_nobody_in_line(
    cluster: FakeCluster, phases: list[str], behind: tuple[int, ...], newcomer: bool, called: bool
) -> None:
    cluster.jobs = jobs(phases)
    for start, (job, tasks) in enumerate(zip(cluster.jobs, behind, strict=False)):
        job["metadata"][BEHIND] = str(tasks)
        job["start_time"] = start + 1
    cluster.jobs.reverse()  # Ray sorts them by something else
    assert run(enter(place())) is newcomer
    assert run(enter(place(), has_turn=True)) is called


def test_waiting_job_of_whatever_metadata_stops_no_submission(cluster: FakeCluster) -> None:
    cluster.jobs = jobs([WAITING])
    cluster.jobs[0]["metadata"][BEHIND] = "a few"
    assert run(enter(place()))


async def submit(place: QueuePlace, **kind: bool) -> bool:
    with contextlib.closing(SubmissionGate(place, Log())) as gate:
        if not await gate.enter(**kind):
            return False
        job: dict[str, Any] = {"entrypoint": "x", "runtime_env": {}, "metadata": {PHASE: WAITING}}
        await RayHook().acall(jobs_api.submit(submission_id=place.task, **job))
        return True


@pytest.mark.parametrize("has_turn", [False, True])
def test_tasks_of_one_machine_take_the_places_that_there_are(cluster: FakeCluster, has_turn: bool) -> None:
    cluster.has_room = False

    async def all_at_once() -> list[bool]:
        tasks = range(LIMIT + 5)
        return await asyncio.gather(*(submit(place(f"t{i}"), has_turn=has_turn, holds=False) for i in tasks))

    assert sum(run(all_at_once())) == len(cluster.jobs) == LIMIT


def test_tasks_that_have_submitted_leave_no_file(cluster: FakeCluster, tmp_path: Path) -> None:
    async def all_at_once() -> list[bool]:
        return await asyncio.gather(
            *(submit(place(f"t{i}"), has_turn=True, holds=True) for i in range(LIMIT))
        )

    assert all(run(all_at_once()))
    assert not list(tmp_path.glob("*.queue"))


@pytest.mark.slow
def test_tasks_that_hold_share_a_look(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.jobs = jobs([WAITING] * LIMIT)
    monkeypatch.setattr(submission_queue, "_LOOK_SECONDS", 60.0)

    async def all_at_once() -> list[Any]:
        held = (enter(place(queue_timeout=0.5), holds=True) for _ in range(4))
        return await asyncio.gather(*held, return_exceptions=True)

    assert {type(e) for e in run(all_at_once())} == {RayQueueTimeoutError}
    assert looks(cluster) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machines", "tasks", "has_turn"),
    [(3, 24, False), long(3, 24, True), long(1, 200, False), long(4, 200, False)],
)
def test_processes_that_start_at_once_take_the_places_that_there_are_and_one_more_a_machine(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machines: int, tasks: int,
    has_turn: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("AIRFLOW__RAY_LLM__MAX_WAITING_JOBS", "8")
    cluster.has_room = False
    # Not forked from this process, whose threads may hold locks.
    submitted = in_own_process(start_at_once, tmp_path, machines, tasks, has_turn)
    assert submitted == len(cluster.jobs) == cluster.most_waiting
    assert 8 <= submitted <= 8 + machines - 1


def start_at_once(folder: Path, machines: int, tasks: int, has_turn: bool) -> int:
    """Returns how many of as many processes submitted a job."""
    tempfile.tempdir = str(folder)
    run(enter(place()))  # the processes inherit what a first task imports
    fork = get_context("fork")
    all_there = fork.Barrier(tasks)

    def task(number: int) -> None:
        tempfile.tempdir = str(folder / f"machine-{number % machines}")
        Path(tempfile.tempdir).mkdir(exist_ok=True)
        all_there.wait()
        sys.exit(0 if run(submit(place(f"t{number}"), has_turn=has_turn, holds=False)) else 1)

    processes = [fork.Process(target=task, args=(i,)) for i in range(tasks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0, 1}
    return [process.exitcode for process in processes].count(0)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_deferred_tasks_are_called_in_the_order_in_which_they_came_and_share_their_looks(
    cluster: FakeCluster,
) -> None:
    cluster.jobs = jobs([WAITING] * LIMIT)
    order, behind = list[str](), dict[str, int]()

    async def in_line(task: str, since: float) -> None:
        place_in_line = place(task, since=since)
        event = await fire(place_in_line)
        assert event["place"] == asdict(place_in_line)
        behind[task] = event["behind"]
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
        assert (behind["t3"], behind["t2"] + behind["t1"]) == (3, 2)
        for task in tasks:
            task.cancel()  # as when a task that holds its submission is cleared
        await asyncio.wait(tasks)

    run(line())


@pytest.mark.slow
def test_wait_that_is_too_long_fails_the_task_as_it_does_on_the_cluster(cluster: FakeCluster) -> None:
    cluster.jobs = jobs([WAITING] * LIMIT)
    with pytest.raises(RayQueueTimeoutError, match=r"within limits.queue: waited 0 s"):
        raise_error_of(run(fire(place(queue_timeout=0.3))))
    with pytest.raises(AirflowTaskTimeout, match="execution_timeout"):
        raise_error_of(run(fire(place(deadline=time.time() + 0.3))))


def test_wait_that_was_too_long_says_what_for() -> None:
    with pytest.raises(RayQueueTimeoutError, match="in the end 3 jobs wait for room on the cluster"):
        place(since=time.time() - 61).seconds_left(jobs_text(3))


@pytest.mark.slow
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
        raise_error_of(run(fire(place(cluster="embedded:ray_default@elsewhere"))))
    assert looks(cluster) == 0


def test_error_that_a_newer_triggerer_found_fails_the_task_and_is_retried() -> None:
    with pytest.raises(RayQueueTimeoutError, match="late"):
        raise_error_of(error_event(RayQueueTimeoutError("late"), place()))
    with pytest.raises(RayLLMJobError, match="of a later version"):
        raise_error_of({"failure": {"kind": "something new", "sentence": "of a later version"}})


# --- A paused DAG ---


def test_task_of_a_dag_that_was_paused_after_its_call_has_waited_no_longer_than_until_then(
    cluster: FakeCluster,
) -> None:
    event = run(fire(place(since=time.time() - 30)))
    assert 30 <= event["waited_s"] < 40
    event["place"]["since"] -= 86_400  # a day passes, and somebody resumes the DAG
    turn = Turn.from_event(event)
    assert turn is not None
    assert 30 <= turn.place.waited_s < 40
    assert run(enter(turn.place, has_turn=True))


@pytest.mark.slow
def test_time_of_tasks_that_airflow_does_not_start_does_not_run(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RAY_LLM__MAX_WAITING_JOBS", "1")
    monkeypatch.setattr(submission_queue, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(submission_line, "_KEPT_SECONDS", 0.2)

    async def line() -> None:
        paused = asyncio.create_task(fire(place("paused/2", queue_timeout=1.5)))
        await fire(place("paused/1", since=time.time() - 1))
        cluster.jobs = jobs([WAITING])
        with pytest.raises(RayQueueTimeoutError):
            raise_error_of(await fire(place("other/1", queue_timeout=2.0)))
        assert not paused.done()
        cluster.jobs = []
        assert 0 < (await paused)["waited_s"] < 1.5

    run(line())


def test_event_of_another_version_lets_the_task_come_anew_or_as_it_came() -> None:
    assert Turn.from_event({}) is None
    assert Turn.from_event({"place": {"came": 1}}) is None
    turn = Turn.from_event({"place": asdict(place(since=time.time() - 30))})
    assert turn is not None
    assert (30 <= turn.place.waited_s < 40, turn.behind) == (True, 0)
