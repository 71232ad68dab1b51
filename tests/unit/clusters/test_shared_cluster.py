"""What a task does with a cluster that tasks make, share and end, and that takes a while to start: of a kind
that the package does not know."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.clusters.base import Holder
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayQueueTimeoutError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task.job.record import STATE_KEY, JobRecord
from airflow_provider_raydatallm.task.job.tracker import JobTracker
from airflow_provider_raydatallm.task.job.waiter import JobRef
from airflow_provider_raydatallm.task.queue import gate as submission_gate
from airflow_provider_raydatallm.task.queue import places
from airflow_provider_raydatallm.task.queue.gate import SubmissionGate
from airflow_provider_raydatallm.task.queue.places import QueuePlace, Turn, raise_error_of
from airflow_provider_raydatallm.triggers.submission_turn import SubmissionTurnTrigger
from tests.support.context import StateStore, context_of
from tests.support.fake_cluster import Log
from tests.support.toy_clusters import Toy, ToyCluster
from tests.unit.clusters.stages import CONNECTION, ToyStage


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Toy]]:
    """Those that were made."""
    monkeypatch.setattr(submission_gate, "_TRY_SECONDS", 0.02)
    monkeypatch.setattr(places, "_LOOK_SECONDS", 0.02)
    stage = ToyStage()
    yield ToyCluster.made
    stage.close()


class Task(RayLLMBatchOperator):
    def _wait_options(self, context: Any) -> JobRef:
        return replace(super()._wait_options(context), poll_interval=0.05, reconnect_timeout=0.3)


def task(key: str, output: Path) -> Task:
    with DAG(key, schedule=None):
        return Task(
            task_id="t", ray_conn_id=CONNECTION, slice_key=key, input_path="/no/in", prompt="{name}",
            output_path=str(output), model_source="m", deferrable=False,
        )  # fmt: skip


def tracker_of(operator: Task, store: StateStore | None, *, try_number: int = 1) -> JobTracker:
    return operator._build_tracker(context_of(operator, store, try_number=try_number), None)


class Forgetful(StateStore):
    """Loses what it keeps at once."""

    def set(self, key: str, value: Any) -> None: ...


def server_of(toys: dict[str, Toy]) -> Any:
    [toy] = toys.values()
    return toy.server


def test_tasks_share_a_cluster_until_the_last_of_them_has_its_result(
    toys: dict[str, Toy], tmp_path: Path
) -> None:
    first, second = (tracker_of(task(key, tmp_path), StateStore()) for key in ("a", "b"))
    assert first.submit().cluster == second.submit().cluster
    first.mark_ended()
    assert len(server_of(toys).jobs) == 2
    second.conclude({"outcome": "published"})
    assert toys == {}


def test_next_try_finds_the_cluster_of_the_record_and_no_other(toys: dict[str, Toy], tmp_path: Path) -> None:
    operator, store = task("a", tmp_path), StateStore()
    job = tracker_of(operator, store).submit()
    assert store[STATE_KEY]["cluster"] == server_of(toys).jobs[0]["metadata"]["cluster"] == job.cluster
    found = tracker_of(operator, store, try_number=2).find_job()
    assert found is not None
    assert (found.submission_id, found.cluster) == (job.submission_id, job.cluster)
    ToyCluster.end(next(iter(toys)))
    assert tracker_of(operator, store, try_number=2).find_job() is None
    assert toys == {}  # a cluster is made for a job alone


def test_cluster_released_under_a_waiting_task_fails_it_and_publishes_and_deletes_nothing(
    toys: dict[str, Toy], tmp_path: Path
) -> None:
    operator, store = task("a", tmp_path / "out"), StateStore()
    servers: list[Any] = []

    def release() -> None:
        """Once the waiter has seen its job."""
        while not toys or (not server_of(toys).count("/api/jobs/a-t-")):
            time.sleep(0.02)
        servers.append(server_of(toys))
        ToyCluster.end(next(iter(toys)))

    threading.Thread(target=release, daemon=True).start()
    with pytest.raises(RayUnreachableError, match=r"the toy toy-\d+ was released"):
        operator.execute(context_of(operator, store))
    [server] = servers
    assert (len(server.jobs), server.count("/stop"), toys) == (1, 0, {})
    assert store[STATE_KEY]["phase"] == "submitted"  # the next try looks for it
    assert not (tmp_path / "out").exists()


def end_after_acquire(tracker: JobTracker) -> JobTracker:
    """The cluster's lifetime ends between the task's intent and its job."""
    save, ended = tracker._save, set[str]()

    def save_and_end(record: JobRecord) -> None:
        save(record)
        if not ended:
            ended.add(next(iter(ToyCluster.made)))
            ToyCluster.end(*ended)

    tracker._save = save_and_end  # type: ignore[method-assign]
    return tracker


def test_job_of_a_cluster_that_ended_before_it_is_found_and_released_where_it_runs(
    toys: dict[str, Toy], tmp_path: Path
) -> None:
    operator, store = task("a", tmp_path), StateStore()
    tracker = end_after_acquire(tracker_of(operator, store))
    job = tracker.submit()
    [submitted] = server_of(toys).jobs
    [own] = toys
    assert job.cluster == store[STATE_KEY]["cluster"] == submitted["metadata"]["cluster"]
    assert job.cluster.endswith(own)
    assert tracker_of(operator, store, try_number=2).find_job() is not None
    tracker_of(operator, store, try_number=2).conclude({"outcome": "published"})
    assert toys == {}


@pytest.mark.parametrize("takes_over", [True, False])
@pytest.mark.parametrize("store", [StateStore, Forgetful, lambda: None], ids=["kept", "lost", "none"])
def test_try_that_was_thought_dead_does_not_release_the_cluster_under_the_next_one(
    store: Callable[[], StateStore | None], takes_over: bool, toys: dict[str, Toy], tmp_path: Path
) -> None:
    operator, states = task("a", tmp_path), store()
    late = tracker_of(operator, states)
    late.submit()
    newer = tracker_of(operator, states, try_number=2)
    assert (newer.find_job() if takes_over else newer.submit()) is not None
    late.mark_ended()
    assert len(toys) == 1
    newer.mark_ended()
    assert toys == {}


def make_another(toys: dict[str, Toy]) -> str:
    """The connection means it from now on, and no longer the one before."""
    [before] = toys
    another = ToyCluster.make()
    toys[before] = toys.pop(before)
    return another


def test_cluster_that_a_task_was_moved_away_from_is_released(toys: dict[str, Toy], tmp_path: Path) -> None:
    operator, store = task("a", tmp_path), StateStore()
    tracker_of(operator, store).submit()
    other = make_another(toys)
    later = tracker_of(operator, store, try_number=2)
    later.submit()
    assert list(toys) == [other]


def test_try_holds_the_cluster_of_the_job_that_it_takes_over_although_its_connection_means_another(
    toys: dict[str, Toy], tmp_path: Path
) -> None:
    operator, store = task("a", tmp_path), StateStore()
    late = tracker_of(operator, store)
    job = late.submit()
    other = make_another(toys)
    newer = tracker_of(operator, store, try_number=2)
    found = newer.find_job()
    assert found is not None
    assert found.cluster == job.cluster
    store.clear()
    late.mark_ended()
    assert len(toys) == 2
    newer.mark_ended()
    assert list(toys) == [other]


def test_cluster_whose_connection_is_gone_keeps_no_other_from_its_release(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OLD", '{"conn_type": "ray", "host": "toy"}')
    operator, store, log = task("a", tmp_path), StateStore(), Log()
    tracker_of(operator, store).submit()
    [kept] = toys
    store[STATE_KEY]["cluster"] = f"toy:old@{kept}"
    make_another(toys)
    tracker = tracker_of(operator, store, try_number=2)
    tracker._log = log
    tracker.hook.acquire()
    monkeypatch.delenv("AIRFLOW_CONN_OLD")
    tracker.conclude({"outcome": "published"})
    assert list(toys) == [kept]
    [told] = log.lines
    assert told.startswith(f"Cannot release toy:old@{kept}: there is no connection 'old'")


class Moved:
    """A task whose job was taken by its cluster, which another task holds, too, and then did not answer: the
    connection meant another cluster when the task asked again. `comes_back`: whether the first one answers
    then."""

    def __init__(self, toys: dict[str, Toy], output: Path, *, comes_back: bool) -> None:
        tracker_of(task("b", output), StateStore()).submit()
        [self.first] = toys.values()
        self.operator, self.store, self.log = task("a", output), StateStore(), Log()
        self.tracker = tracker = tracker_of(self.operator, self.store)
        tracker._log = self.log
        tracker._wait_options = replace(tracker._wait_options, reconnect_timeout=60.0)
        save = tracker._save

        def save_and_come_back(record: JobRecord) -> None:
            save(record)
            if comes_back and len(toys) == 2:
                self.first.server.http = None

        def lose_answer() -> None:
            self.first.server.http = 503
            make_another(toys)

        tracker._save = save_and_come_back  # type: ignore[method-assign]
        self.first.server.on_lost_answer = lose_answer
        tracker.submit()
        self.second = next(iter(toys.values()))

    @property
    def left(self) -> list[str]:
        return [job["submission_id"] for job in self.store[STATE_KEY]["left"]]

    @property
    def jobs(self) -> list[tuple[str, str]]:
        """Ids and states of those that the task has on the first cluster, and on the second."""
        jobs = [*self.first.server.jobs[1:], *self.second.server.jobs]
        return [(job["submission_id"], job["status"]) for job in jobs]


def test_job_whose_answer_was_lost_is_stopped_before_another_cluster_is_sent_one(
    toys: dict[str, Toy], tmp_path: Path
) -> None:
    moved = Moved(toys, tmp_path, comes_back=True)
    (one, stopped), (two, runs) = moved.jobs
    assert (stopped, runs, moved.left) == ("STOPPED", "RUNNING", [])
    assert one != two  # an id is never used twice
    [stop] = [at for at, call in moved.first.server.calls if call.endswith("/stop")]
    [send] = [at for at, call in moved.second.server.calls if call == "POST /api/jobs/"]
    assert stop < send
    assert [list(toy.holders) for toy in (moved.first, moved.second)] == [["b/r/t/-1"], ["a/r/t/-1"]]


@pytest.mark.parametrize("next_try", [False, True])
def test_job_of_a_cluster_that_cannot_be_reached_is_recorded_and_stopped_later(
    next_try: bool, toys: dict[str, Toy], tmp_path: Path
) -> None:
    moved = Moved(toys, tmp_path, comes_back=False)
    (one, runs), (two, _) = moved.jobs
    assert (runs, moved.left, moved.store[STATE_KEY]["submission_id"]) == ("RUNNING", [one], two)
    assert any(f"Ray job {one} may run on toy:" in line for line in moved.log.lines)
    assert list(moved.first.holders) == ["b/r/t/-1"]
    moved.first.server.http = None
    if next_try:
        found = tracker_of(moved.operator, moved.store, try_number=2).find_job()
        assert found is not None
        assert found.submission_id == two
    else:
        moved.tracker.conclude({"outcome": "published"})
    assert (moved.jobs[0], moved.left) == ((one, "STOPPED"), [])


def test_job_of_an_earlier_try_on_a_cluster_out_of_reach_is_stopped_at_the_end_of_the_next(
    toys: dict[str, Toy], tmp_path: Path
) -> None:
    operator, store = task("a", tmp_path), StateStore()
    tracker_of(task("b", tmp_path), StateStore()).submit()
    tracker_of(operator, store).submit()
    [first] = toys.values()
    make_another(toys)
    first.server.http = 503
    later = tracker_of(operator, store, try_number=2)
    assert later.find_job() is None
    later.submit()
    first.server.http = None
    later.conclude({"outcome": "published"})
    assert [job["status"] for job in first.server.jobs] == ["RUNNING", "STOPPED"]
    assert (store[STATE_KEY]["left"], len(toys)) == ([], 1)


def test_left_job_is_not_stopped_where_it_is_another_tasks(toys: dict[str, Toy], tmp_path: Path) -> None:
    moved = Moved(toys, tmp_path, comes_back=False)
    moved.first.server.http = None
    moved.first.server.jobs[1]["metadata"]["run_id"] = "another"
    moved.tracker.mark_ended()
    assert (moved.jobs[0][1], moved.left) == ("RUNNING", [])


def refuse_jobs(toys: dict[str, Toy]) -> None:
    while not toys:
        time.sleep(0.005)
    server_of(toys).token = "another"


def test_task_that_is_refused_before_its_submission_releases_the_cluster(
    toys: dict[str, Toy], tmp_path: Path
) -> None:
    operator, store = task("a", tmp_path), StateStore()
    threading.Thread(target=refuse_jobs, args=(toys,), daemon=True).start()
    with pytest.raises(RayConnectionError, match="refuses the token"):
        operator.execute(context_of(operator, store))
    assert (toys, STATE_KEY in store) == ({}, False)


@pytest.mark.parametrize("away", [False, True])
def test_submission_that_is_refused_releases_the_cluster_and_one_that_may_run_does_not(
    away: bool, toys: dict[str, Toy], tmp_path: Path
) -> None:
    tracker = tracker_of(task("a", tmp_path), StateStore())
    tracker.hook.acquire()
    if away:
        server_of(toys).http = 503
    else:
        server_of(toys).token = "another"
    with pytest.raises(RayUnreachableError if away else RayConnectionError), tracker.releasing():
        tracker.submit()
    assert len(toys) == away


def test_task_whose_time_in_line_is_over_releases_the_cluster(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ToyCluster, "is_starting", True)
    operator, cluster = task("a", tmp_path), RayHook(CONNECTION, Holder("a/r/t/-1", 1))
    with pytest.raises(RayUnreachableError):
        cluster.acquire()
    waits = SubmissionTurnTrigger(asdict(place(queue_timeout=0.3, cluster=cluster.acquired)))
    event = asyncio.run(in_loop(waits.wait))
    with pytest.raises(RayQueueTimeoutError):
        operator.execute_in_turn(context_of(operator, StateStore()), event)
    assert toys == {}


def place(**changes: Any) -> QueuePlace:
    return replace(QueuePlace(CONNECTION, "d/r/t/-1", time.time(), 60.0, None, 0.1), **changes)


async def in_loop(work: Callable[[], Any]) -> Any:
    try:
        return await work()
    finally:
        await close_clients()


def test_deferrable_task_waits_in_the_triggerer_for_a_cluster_that_starts(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyCluster, "is_starting", True)
    gate = SubmissionGate(place(), Log(), RayHook(CONNECTION, Holder("d/r/t/-1", 1)))
    assert not asyncio.run(in_loop(lambda: gate.enter(has_turn=False, holds=False)))
    deferred = asdict(place(cluster=gate.cluster))
    assert [list(toy.holders) for toy in toys.values()] == [["d/r/t/-1"]]
    began = time.monotonic()
    ready = threading.Timer(0.5, lambda: setattr(ToyCluster, "is_starting", False))
    ready.start()
    event = asyncio.run(in_loop(SubmissionTurnTrigger(deferred).wait))
    assert Turn.from_event(event) is not None
    assert time.monotonic() - began >= 0.5  # longer than a cluster may be away
    assert RayHook.to_cluster(gate.cluster).acquired == ""


@pytest.mark.parametrize("deferred", [False, True])
def test_cluster_that_does_not_start_in_time_fails_the_task_by_limits_queue(
    deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyCluster, "is_starting", True)
    gate = SubmissionGate(place(queue_timeout=0.5), Log())
    if not deferred:
        with pytest.raises(RayQueueTimeoutError, match="the toy is being made"):
            asyncio.run(in_loop(lambda: gate.enter(has_turn=False, holds=True)))
        return
    cluster = RayHook(CONNECTION)
    with pytest.raises(RayUnreachableError):
        cluster.acquire()
    waits = SubmissionTurnTrigger(asdict(place(queue_timeout=0.5, cluster=cluster.acquired)))
    with pytest.raises(RayQueueTimeoutError, match="the toy is being made"):
        raise_error_of(asyncio.run(in_loop(waits.wait)))
