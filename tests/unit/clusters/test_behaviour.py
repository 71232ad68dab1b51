"""The behaviour of every kind of cluster, as tasks have it: through `RayHook` and the wait for a job."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_raydatallm.clusters.base import Identity
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.hooks.jobs_api import JobInfo
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.verdict import ClusterUnreachable, EndedWithoutReport, Verdict
from airflow_provider_raydatallm.task.job.waiter import Intervals, JobRef, wait_for_job
from tests.support.fake_cluster import Log
from tests.unit.clusters.stages import (
    CONNECTION,
    ConnectionStage,
    EmbeddedStage,
    KubeRayStage,
    Stage,
    ToyStage,
)

STAGES = [ConnectionStage, ToyStage, KubeRayStage, pytest.param(EmbeddedStage, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=STAGES)
def whole_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = request.param()
    yield stage
    stage.close()


@pytest.fixture
def stage(whole_stage: Stage) -> Stage:
    whole_stage.start()
    return whole_stage


def version(hook: RayHook) -> str:
    hook.reread()  # as whoever resumes: nothing that an earlier call found counts
    return hook.call(jobs_api.get_version())


def wait(cluster: str, job: str, then: Callable[[], None], *, reconnect_s: float = 0.2) -> Verdict:
    """Waits for a job as the triggerer does.

    :param then: what happens right after the waiter has seen the job.
    """
    ref = JobRef(CONNECTION, 0.05, reconnect_s, None, None, time.time(), job, "n", cluster=cluster)
    hook = RayHook.to_cluster(cluster)
    ask, has_seen = hook.aget_status, False

    async def asked(submission_id: str) -> JobInfo | None:
        nonlocal has_seen
        info = await ask(submission_id)
        if not has_seen:
            has_seen = True
            await asyncio.to_thread(then)
        return info

    hook.aget_status = asked  # type: ignore[method-assign]

    async def still_waits() -> bool:
        return True

    async def run() -> Verdict:
        try:
            return await wait_for_job(ref, Log(), still_waits, Intervals(min_poll=0.05), hook)
        finally:
            await close_clients()

    return asyncio.run(run())


def test_record_finds_the_very_cluster_from_any_process(stage: Stage) -> None:
    identity = stage.acquire("a").acquired
    assert Identity.parse(identity).conn_id == CONNECTION
    resumed = RayHook.to_cluster(json.loads(json.dumps(identity)))
    resumed.check_machine()
    assert version(resumed)
    assert (resumed.cluster, stage.acquire("b").acquired) == (identity, identity)


def test_cluster_of_two_holders_serves_one_after_the_other_has_released_it(stage: Stage) -> None:
    first, second = stage.acquire("first"), stage.acquire("second")
    first.acquire()  # again, as a retry
    first.release()
    first.release()
    assert version(second)
    assert version(RayHook.to_cluster(second.acquired))


def test_try_that_was_thought_dead_releases_nothing_that_a_newer_one_holds(stage: Stage) -> None:
    late, newer = stage.acquire("a"), stage.acquire("a", try_number=2)
    late.acquire()
    late.release()
    assert version(newer)
    newer.release()
    assert stage.runs() is not newer.ends_when_released


def test_cluster_that_refuses_is_waited_for_and_then_said_to(stage: Stage) -> None:
    identity = stage.acquire("a").acquired
    job = stage.submit(identity)
    stage.refuse()
    try:
        with pytest.raises((RayConnectionError, RayUnreachableError), match=f"connection '{CONNECTION}'"):
            version(RayHook.to_cluster(identity))
        assert isinstance(wait(identity, job, lambda: None), ClusterUnreachable)
    finally:
        stage.accept()
    assert version(RayHook.to_cluster(identity))


def test_cluster_that_follows_at_the_same_address_is_not_taken_for_the_jobs_own(stage: Stage) -> None:
    identity = stage.acquire("a").acquired
    job = stage.submit(identity)
    verdict = wait(identity, job, stage.replace, reconnect_s=10.0)
    assert verdict == EndedWithoutReport("unknown") or isinstance(verdict, ClusterUnreachable)
    assert not list(filter(lambda j: j.submission_id == job, stage.acquire("b").call(jobs_api.list_jobs())))


def test_cluster_that_dies_while_it_is_waited_for_says_nothing_of_the_job(stage: Stage) -> None:
    verdict = wait(identity := stage.acquire("a").acquired, stage.submit(identity), stage.kill)
    assert isinstance(verdict, ClusterUnreachable)
    assert not verdict.refused
    stage.end()


def test_cluster_that_is_released_under_a_waiting_task_is_an_error_and_not_started_again(
    stage: Stage,
) -> None:
    holder = stage.acquire("a")
    holder.keep()
    verdict = wait(holder.acquired, stage.submit(holder.acquired), stage.end)
    if stage.tells_end:
        assert verdict == EndedWithoutReport("unknown")
    else:
        assert isinstance(verdict, ClusterUnreachable)
    for hook in (holder, RayHook.to_cluster(holder.acquired)):
        with pytest.raises(RayUnreachableError, match=stage.released):
            version(hook)
    assert not stage.runs()
