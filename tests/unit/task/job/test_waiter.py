"""The waiting loop against a real HTTP server that acts as a cluster."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.job.heartbeat import CONFIRMED
from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.contract.log.own_lines import format_lines
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.task.job.verdict import (
    ClusterUnreachable,
    EndedWithoutReport,
    Failed,
    Finished,
    TimedOut,
    Unconfirmed,
    Verdict,
    from_event,
    to_event,
)
from airflow_provider_raydatallm.task.job.waiter import Intervals, JobRef, wait_for_job
from tests.support.fake_cluster import FakeCluster, Log

INTERVALS = Intervals(min_poll=0.05, warning=600, log_reconnect=0.05, silence=0.3)
REPORT = encode_line("report", "n", {"outcome": "published"})
OWN = format_lines("WARNING", "2026-01-01", "be careful", 0.0)


async def yes() -> bool:
    return True


def wait(
    log: Log | None = None, /, still_waits: Callable[[], Awaitable[bool]] = yes, **given: Any
) -> Verdict:
    ref = {
        "ray_conn_id": "ray_default", "poll_interval": 0.05, "reconnect_timeout": 60.0,
        "orphan_timeout": None,
        "deadline": None, "since": time.time(), "submission_id": "j", "nonce": "n",
        "cluster": "connection:ray_default", **given,
    }  # fmt: skip

    async def waited() -> Verdict:
        try:
            return await wait_for_job(JobRef(**ref), log or Log(), still_waits, INTERVALS)
        finally:
            await close_clients()

    return asyncio.run(waited())


def once(condition: Callable[[], Any], action: Callable[[], Any]) -> None:
    def run() -> None:
        while not condition():
            time.sleep(0.02)
        action()

    threading.Thread(target=run, daemon=True).start()


def test_report_in_a_followed_log_ends_the_wait_at_once(cluster: FakeCluster) -> None:
    cluster.log = ["hello", OWN, REPORT]
    log = Log()
    assert wait(log, poll_interval=30.0) == Finished({"outcome": "published"})
    assert cluster.count("/logs/file") == 0
    assert log.lines == ["WARNING be careful"]  # neither a marked line nor what others print


def test_full_log_has_every_line(cluster: FakeCluster) -> None:
    cluster.log = ["hello", "ERROR 11-24 13:17:22 [core.py:1] no", OWN, REPORT]
    log = Log()
    wait(log, log="full")
    assert log.lines == ["INFO hello", "ERROR ERROR 11-24 13:17:22 [core.py:1] no", "WARNING be careful"]


def test_plan_and_phases_are_told_in_their_order(cluster: FakeCluster) -> None:
    steps: list[dict[str, Any]] = [
        {"step": "plan"},
        {"step": "planned", "plan": [["rows", "5"], ["engine", "e"]]},
    ]
    start = {"step": "start", "rows": 0, "planned": 5, "elapsed_s": 0.1, "queued_s": 0.0}
    marked = [encode_line("progress", "n", step) for step in (*steps, start, start)]
    cluster.log = [*marked[:2], OWN, *marked[2:], REPORT]
    log = Log()
    wait(log)
    plan = ["::group::Plan", "rows    5", "engine  e", "::endgroup::"]
    assert log.lines == ["planning the slice", *plan, "WARNING be careful", "starting the engine"]


def test_failure_has_the_lines_that_explain_it_and_no_others(cluster: FakeCluster) -> None:
    error = encode_line("error", "n", {"kind": "transient", "sentence": "boom"})
    cluster.log = [
        "INFO 11-24 13:17:22 [core.py:1] loading",
        OWN,
        "Traceback (most recent call last):",
        "boom",
        error,
    ]
    log = Log()
    tail = ("Traceback (most recent call last):", "boom")
    assert wait(log) == Failed(Failure("transient", "boom", log=tail))
    assert log.lines == ["WARNING be careful"]


def test_stream_that_is_cut_continues_without_repeating_lines(cluster: FakeCluster) -> None:
    cluster.log, cluster.cut = ["one", "two"], True
    once(lambda: cluster.count("/logs/stream") > 2, lambda: cluster.log.extend(["three", REPORT]))
    log = Log()
    wait(log, log="full")
    assert log.lines == ["INFO one", "INFO two", "INFO three"]


def test_beyond_max_log_streams_only_progress_is_shown(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RAY_LLM__MAX_LOG_STREAMS", "0")
    cluster.log = ["hello", encode_line("progress", "n", {"step": "plan"})]
    log = Log()
    end = {"log": [*cluster.log, REPORT], "status": "SUCCEEDED"}
    once(lambda: log.lines, lambda: vars(cluster).update(end))
    assert wait(log) == Finished({"outcome": "published"})
    assert cluster.count("/logs/stream") == 0
    assert log.lines == ["planning the slice"]


def test_waiter_that_takes_over_begins_at_the_end_of_the_log(cluster: FakeCluster) -> None:
    cluster.log = ["old"]
    once(lambda: cluster.count("lines=1&"), lambda: setattr(cluster, "status", "SUCCEEDED"))
    log = Log()
    assert isinstance(wait(log, since=time.time() - 3600), EndedWithoutReport)
    assert log.lines == []


def test_failing_cluster_is_waited_for(cluster: FakeCluster) -> None:
    cluster.http = 503
    log = Log()
    recovered = {"http": None, "log": [REPORT]}
    once(lambda: cluster.count("/api/jobs/j") > 5, lambda: vars(cluster).update(recovered))
    assert wait(log, reconnect_timeout=600.0) == Finished({"outcome": "published"})
    assert sum("Waiting for the cluster" in line for line in log.lines) == 1


def test_token_replaced_in_the_connection_is_used(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connection(token: str) -> None:
        value = {"conn_type": "ray", "host": cluster.address, "password": token}
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(value))

    connection("old-token")
    cluster.token, cluster.log = "new-token", [REPORT]
    once(lambda: cluster.count("/api/jobs/j") > 1, lambda: connection("new-token"))
    assert wait() == Finished({"outcome": "published"})


@pytest.mark.parametrize(("http", "refused"), [(503, False), (401, True)])
def test_cluster_that_stays_away_is_unreachable(cluster: FakeCluster, http: int, refused: bool) -> None:
    cluster.http = http
    verdict = wait(reconnect_timeout=0.3)
    assert isinstance(verdict, ClusterUnreachable)
    assert verdict.refused is refused


@pytest.mark.slow
def test_deadline_holds_while_the_cluster_is_away(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "_BACKOFF", (60.0,))
    for cluster.http in (None, 503):
        began = time.monotonic()
        assert wait(deadline=time.time() + 0.5) == TimedOut()
        assert 0.4 < time.monotonic() - began < 50


@pytest.mark.slow
def test_waiter_sends_heartbeats(cluster: FakeCluster) -> None:
    def beats() -> int:
        return cluster.count("PUT /api/packages/gcs/ray-llm-owner-j")

    once(lambda: beats() > 2, lambda: setattr(cluster, "status", "FAILED"))
    began = time.monotonic()
    wait(orphan_timeout=2.4)
    assert beats() <= 1 + (time.monotonic() - began) / 0.2  # one each 0.2 seconds


def test_job_unknown_to_the_cluster_ended_without_a_report(cluster: FakeCluster) -> None:
    cluster.status = None
    assert wait() == EndedWithoutReport("unknown")


@pytest.mark.parametrize("state", [None, "ALIVE"])
def test_job_that_says_nothing_is_waited_for(cluster: FakeCluster, state: str | None) -> None:
    cluster.node_state = state
    once(lambda: cluster.count("/api/v0/nodes") > 1, lambda: setattr(cluster, "cut", True))
    once(lambda: cluster.cut, lambda: cluster.log.append(REPORT))
    assert wait() == Finished({"outcome": "published"})


def test_job_whose_node_is_dead_is_lost_whatever_the_cluster_says(cluster: FakeCluster) -> None:
    """A head that was started again with its memory in Redis says that it runs."""
    cluster.node_state = "DEAD"
    log = Log()
    assert wait(log) == EndedWithoutReport("unknown")
    assert "Ray job j died with its node" in log.lines


def test_job_that_publishes_hears_at_once_that_its_task_waits(cluster: FakeCluster) -> None:
    cluster.log = [encode_line("progress", "n", {"step": "publish"})]
    once(lambda: any(b.startswith(CONFIRMED) for b in cluster.beats), lambda: cluster.log.append(REPORT))
    once(lambda: REPORT in cluster.log, lambda: setattr(cluster, "cut", True))
    assert isinstance(wait(orphan_timeout=3600.0, poll_interval=30.0), Finished)
    assert not cluster.beats[0].startswith(CONFIRMED)  # before there was anything to publish


@pytest.mark.slow
@pytest.mark.parametrize("why", ["Airflow no longer wants", "cannot ask Airflow"])
def test_job_does_not_publish_for_a_task_that_was_marked_while_its_waiter_hung(
    cluster: FakeCluster, why: str
) -> None:
    async def no() -> bool:
        if why == "cannot ask Airflow":
            raise BrokenPipeError
        return False

    cluster.log = [encode_line("progress", "n", {"step": "publish"})]
    log = Log()
    assert wait(log, no, orphan_timeout=12.0, deadline=time.time() + 2) == TimedOut()
    assert len(cluster.beats) > 1
    assert not any(b.startswith(CONFIRMED) for b in cluster.beats)
    assert any(why in line for line in log.lines)


@pytest.mark.slow
@pytest.mark.parametrize("why", ["Airflow no longer wants", "cannot ask Airflow"])
def test_job_that_may_never_publish_is_waited_for_no_longer_than_one_without_a_task(
    cluster: FakeCluster, why: str
) -> None:
    async def no() -> bool:
        if why == "cannot ask Airflow":
            raise BrokenPipeError
        return False

    cluster.log = [encode_line("progress", "n", {"step": "publish"})]
    verdict = wait(None, no, orphan_timeout=0.6)
    assert isinstance(verdict, Unconfirmed)
    assert why in verdict.reason
    assert from_event(json.loads(json.dumps(to_event(verdict)))) == verdict


@pytest.mark.slow
def test_beats_come_as_often_as_the_job_expects_them_however_seldom_its_status_is_checked(
    cluster: FakeCluster,
) -> None:
    began = time.monotonic()
    once(lambda: len(cluster.beats) >= 5, lambda: setattr(cluster, "status", None))
    assert wait(poll_interval=60.0, orphan_timeout=1.2) == EndedWithoutReport("unknown")
    assert time.monotonic() - began < 60


def test_job_is_read_as_another_version_stored_it() -> None:
    ref = JobRef("c", 5.0, 600.0, None, None, 1.0, submission_id="j")
    stored = {**asdict(ref), "of_tomorrow": 1}
    del stored["log"]
    assert JobRef.of(stored) == ref
