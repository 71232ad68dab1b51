"""Which job a try takes for its own, with Airflow's task state store and without one."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.clusters.embedded import cluster as embedded
from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.exceptions import RayLLMJobError, RayUnreachableError
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task.job.record import SERIES, STATE_KEY, DeferredJob
from airflow_provider_raydatallm.task.job.tracker import JobTracker
from airflow_provider_raydatallm.task.job.waiter import JobRef
from tests.support.context import Instance, StateStore
from tests.support.fake_cluster import FakeCluster, Log
from tests.support.slice_jobs import spec

pytestmark = pytest.mark.usefixtures("cluster")

WAIT = JobRef("ray_default", 0.05, 60.0, None, None, 0.0)
RESULT = {"outcome": "published", "published_version": 1}


def a_try(
    number: int, store: StateStore | None = None, *, clears: int = 0, prompt: str = "{a}", log: Any = None,
    **given: Any,
) -> JobTracker:  # fmt: skip
    """A try of one task."""
    ti = Instance(id=uuid.uuid4(), try_number=number, max_tries=2)
    metadata = {
        "dag_id": "d", "task_id": "t", "run_id": "r", "map_index": "-1", "slice_key": "k",
        "try_number": str(number), "run_start": "then", "dag_version_id": "v", SERIES: f"after {clears}",
    }  # fmt: skip
    job = spec(slice_key="k", input_path="/in", output_path="/out", model_source="m", prompt=prompt)
    submission = JobSubmission(job, [], None, dict, metadata)
    return JobTracker(given.pop("wait", WAIT), lambda: submission, ti, store, log or Log(), **given)


def end(cluster: FakeCluster, status: str = "SUCCEEDED", *, published: bool = True) -> None:
    """Its newest job has ended."""
    cluster.jobs[-1]["status"] = status
    [nonce] = [cluster.jobs[-1]["metadata"]["nonce"]]
    cluster.log = [encode_line("report", nonce, RESULT)] if published else []


# --- Without a record in Airflow ---


@pytest.mark.parametrize("store", [None, StateStore()])
def test_next_try_finds_the_job_of_a_try_that_left_no_record(
    cluster: FakeCluster, store: StateStore | None
) -> None:
    first = a_try(1, store)
    assert first.find_job() is None
    assert cluster.calls == []  # nobody came before: the cluster need not list its jobs
    job = first.submit()
    if store is not None:
        store.clear()
    found = a_try(2, store).find_job()
    assert found is not None
    assert (found.submission_id, found.nonce) == (job.submission_id, job.nonce)
    assert cluster.count("/api/v0/jobs") + sum(path == "/api/jobs/" for _, path in cluster.calls) == 1
    assert store is None or store[STATE_KEY]["try_number"] == 2


def test_record_in_airflow_spares_the_cluster_the_listing(cluster: FakeCluster) -> None:
    store = StateStore()
    job = a_try(1, store).submit()
    found = a_try(2, store).find_job()
    assert found is not None
    assert found.submission_id == job.submission_id
    assert not any(path == "/api/jobs/" for _, path in cluster.calls)


def test_try_that_has_held_its_submission_does_not_list_the_jobs_again(cluster: FakeCluster) -> None:
    assert a_try(2).find_job(may_list=False) is None
    assert cluster.calls == []


@pytest.mark.slow
def test_job_that_was_asked_something_else_is_stopped(cluster: FakeCluster) -> None:
    job = a_try(1, prompt="was: {a}").submit()
    assert a_try(2).find_job() is None
    assert cluster.jobs[0]["status"] == "STOPPED"
    assert cluster.job(job.submission_id) is cluster.jobs[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "published", "clears", "is_taken"),
    [
        ("SUCCEEDED", True, 0, True), ("FAILED", True, 0, True),  # Ray may say so of a job that finished
        ("FAILED", False, 0, False), ("SUCCEEDED", True, 1, False), ("RUNNING", True, 1, True),
        ("SUCCEEDED", False, 0, True),  # its log has gone with its node: the waiter asks the store
    ],
)  # fmt: skip
def test_job_that_ended_counts_when_it_published_and_nobody_cleared_the_task_since(
    cluster: FakeCluster, status: str, published: bool, clears: int, is_taken: bool
) -> None:
    a_try(1).submit()
    end(cluster, status, published=published)
    assert (a_try(2, clears=clears).find_job() is not None) is is_taken


def test_cluster_that_refuses_to_list_its_jobs_is_told_of_and_costs_no_task(cluster: FakeCluster) -> None:
    a_try(1).submit()
    cluster.refused = ("/api/jobs/",)
    log = Log()
    second = a_try(2, log=log)
    assert second.find_job() is None
    assert log.lines[0].startswith(
        "Cannot look for a Ray job of an earlier try: the cluster lists none: conn"
    )
    assert "): GET /api/jobs/: HTTP 403: RBAC: access denied" in log.lines[0]
    second.submit()
    assert len(cluster.jobs) == 2


# --- Records of other versions ---

#: Names the cluster otherwise.
OLDER = {"ray_conn_id": "ray_default", "submission_id": "j"}
NEWER = {"record_format": 2, "cluster": "connection:ray_default"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [NEWER, {"phase": "paused"}, {"nonce": None}, {"try_number": "two"}, {"record_format": "?"}]
)
def test_job_of_a_record_that_cannot_be_read_is_stopped_before_another_is_submitted(
    cluster: FakeCluster, changes: dict[str, Any]
) -> None:
    store, log = StateStore(), Log()
    a_try(1, store).submit()
    store[STATE_KEY] = {n: v for n, v in (store[STATE_KEY] | changes).items() if v is not None}
    assert a_try(2, store, log=log).find_job() is None
    assert cluster.jobs[0]["status"] == "STOPPED"
    assert "another version of the provider wrote its record" in log.lines[-1]


def test_record_with_more_than_this_version_knows_is_read(cluster: FakeCluster) -> None:
    store = StateStore()
    job = a_try(1, store).submit()
    store[STATE_KEY] |= {"from_the_future": 1}
    found = a_try(2, store).find_job()
    assert found is not None
    assert found.submission_id == job.submission_id


@pytest.mark.slow
@pytest.mark.parametrize("value", [{"jobs": ["j"], "record_format": 2}, OLDER, "a newer form", [1]])
def test_record_that_names_no_job_leaves_it_to_the_cluster_or_fails(cluster: FakeCluster, value: Any) -> None:
    a_try(1).submit()
    assert a_try(1, StateStore({STATE_KEY: value})).find_job() is not None
    cluster.refused = ("/api/jobs/",)
    with pytest.raises(RayLLMJobError, match=r"another version of the provider .*Stop the task's job"):
        a_try(2, StateStore({STATE_KEY: value})).find_job()


@pytest.mark.slow
def test_job_in_the_cluster_whose_metadata_cannot_be_read_is_stopped(cluster: FakeCluster) -> None:
    a_try(1).submit()
    cluster.jobs[0]["metadata"] |= {"record_format": "2", "try_number": "one"}
    assert a_try(2).find_job() is None
    assert cluster.jobs[0]["status"] == "STOPPED"


def test_job_of_another_task_is_left_alone_whatever_the_record_says(cluster: FakeCluster) -> None:
    job = a_try(1).submit()
    cluster.jobs[0]["metadata"]["run_id"] = "another"
    named = {"cluster": "connection:ray_default", "submission_id": job.submission_id}
    assert a_try(2, StateStore({STATE_KEY: named})).find_job() is None
    assert cluster.jobs[0]["status"] == "RUNNING"


def test_embedded_ray_is_not_started_for_a_task_that_was_moved_away_from_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_EMBEDDED", "ray://local")
    monkeypatch.setattr(embedded, "ensure_head", lambda: pytest.fail("starts an embedded Ray"))
    (tmp_path / "id").write_text("of-here")
    store, log = StateStore(), Log()
    a_try(1, store).submit()
    store[STATE_KEY]["cluster"] = "embedded:embedded@of-here"
    assert a_try(2, store, log=log).find_job() is None
    assert "the embedded Ray of this machine does not run" in log.lines[-1]


# --- A state store that fails ---


class FailingStore(StateStore):
    """Fails from `away` on."""

    away = False

    def get(self, key: str, default: Any = None) -> Any:
        self._fail()
        return super().get(key, default)

    def set(self, key: str, value: Any) -> None:
        self._fail()
        super().set(key, value)

    def _fail(self) -> None:
        if self.away:
            raise OSError("the state store is away")


def test_state_store_that_fails_after_the_intent_costs_no_task_its_outcome(cluster: FakeCluster) -> None:
    store, log = FailingStore(), Log()
    tracker = a_try(1, store, log=log)
    tracker.submit()
    store.away = True
    tracker.conclude(RESULT)
    assert tracker.record.result == RESULT
    tracker.mark_ended()
    assert "Cannot keep the record of Ray job" in log.lines[-1]
    # But for the intent: nothing is submitted that the next try could not find.
    with pytest.raises(OSError, match="away"):
        tracker.submit()
    assert len(cluster.jobs) == 1


# --- Two tries at once ---


def test_try_that_was_thought_dead_and_wakes_up_leaves_the_record_to_the_newer_one(
    cluster: FakeCluster,
) -> None:
    store = StateStore()
    old = a_try(1, store)
    old.submit()
    newer = a_try(2, store)
    assert newer.find_job() is not None
    waits = store[STATE_KEY]
    for conclude in (old.mark_ended, lambda: old.conclude(RESULT)):
        conclude()
        assert store[STATE_KEY] == waits
    with pytest.raises(RayLLMJobError, match=r"try 2 of the task has Ray job .*; this one, 1, submits no"):
        old.submit()
    assert len(cluster.jobs) == 1
    newer.conclude(RESULT)
    assert a_try(3, store).lost_result() == RESULT
    assert a_try(3, store, clears=2).lost_result() is None


def test_both_tries_that_conclude_one_version_have_its_result(cluster: FakeCluster) -> None:
    """Airflow takes a success of the newer one only, whichever was first: so its events come once."""
    store = StateStore()
    old = a_try(1, store)
    old.submit()
    newer = a_try(2, store)
    assert newer.find_job() is not None
    old.conclude(RESULT)
    newer.conclude(RESULT)
    assert (store[STATE_KEY]["result"], store[STATE_KEY]["try_number"]) == (RESULT, 2)


@pytest.mark.parametrize(("clears", "is_taken"), [(0, True), (1, False)])
def test_job_that_published_while_nobody_waited_is_no_answer_to_a_clear(
    cluster: FakeCluster, clears: int, is_taken: bool
) -> None:
    """With `limits.orphan` None, or cancel_on_kill False, a job publishes although its task has died."""
    store = StateStore()
    a_try(1, store, commits_alone=True).submit()
    end(cluster)
    assert (a_try(2, store, clears=clears).find_job() is not None) is is_taken


def test_try_that_took_over_a_job_after_a_clear_leaves_its_result_to_its_own_retries(
    cluster: FakeCluster,
) -> None:
    store = StateStore()
    a_try(1, store).submit()
    cleared = a_try(2, store, clears=1)
    assert cleared.find_job() is not None
    cleared.conclude(RESULT)
    assert a_try(3, store, clears=1).lost_result() == RESULT
    assert a_try(3, store, clears=2).lost_result() is None


def test_attempt_is_recorded_until_another_one_has_the_job(cluster: FakeCluster) -> None:
    store = StateStore()
    first = a_try(1, store)
    first.submit()
    assert first.is_recorded()
    a_try(2, store).find_job()
    assert not first.is_recorded()
    store.clear()
    assert not first.is_recorded()


# --- In the triggerer ---


@pytest.mark.slow
def test_resume_knows_without_a_store_how_many_jobs_its_try_has_lost() -> None:
    tracker = a_try(1)
    job = spec(slice_key="k", input_path="/in", output_path="/out", model_source="m", prompt="{a}")
    for _ in range(3):
        assert tracker.can_resubmit(stopped=False)
        ref = tracker.submit()
        deferred = DeferredJob.from_kwargs(**DeferredJob(ref, job, tracker.record).to_kwargs())
        assert deferred is not None
        assert deferred.ref == ref
        tracker = a_try(1, record=deferred.record)
        assert tracker.job is not None
        assert tracker.job.submission_id == ref.submission_id
    assert not tracker.can_resubmit(stopped=False)


@pytest.mark.slow
def test_status_job_is_submitted_when_the_cluster_is_back(cluster: FakeCluster) -> None:
    job = spec(slice_key="k", input_path="/in", output_path="/out", model_source="m", prompt="{a}")
    cluster.http = 503
    with pytest.raises(RayUnreachableError):
        a_try(1, wait=replace(WAIT, reconnect_timeout=0.0)).submit_status_job(job, "j")
    threading.Timer(0.3, lambda: setattr(cluster, "http", None)).start()
    began = time.monotonic()
    status_job = a_try(1).submit_status_job(job, "j")
    assert time.monotonic() - began >= 0.3
    [submitted] = cluster.jobs
    assert (status_job.submission_id, status_job.cluster) == (
        submitted["submission_id"], "connection:ray_default"
    )  # fmt: skip
    assert " status " in submitted["entrypoint"]


def test_metadata_holds_the_record_as_text(cluster: FakeCluster) -> None:
    tracker = a_try(1)
    tracker.submit()
    [job] = cluster.jobs
    assert all(isinstance(value, str) for value in job["metadata"].values())
    kept = {n: v for n, v in asdict(tracker.record).items() if n in job["metadata"]}
    names = {"cluster", "nonce", "spec_hash", "fingerprint", "record_format", "try_number", SERIES}
    assert set(kept) == names
    assert {n: str(v) for n, v in kept.items()} == {n: job["metadata"][n] for n in kept}
