"""Many that wait for jobs of one cluster, in one event loop, and the calls that they cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks import status_poller
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.hooks.jobs_api import JobInfo
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.async_tests import async_test
from tests.support.fake_cluster import FakeCluster
from tests.unit.task.conftest import cluster

__all__ = ["cluster"]

JOBS = [f"j{i}" for i in range(40)]


@pytest.fixture(autouse=True)
def busy(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_poller, "_GATHER_SECONDS", 0.3)
    monkeypatch.setattr(status_poller, "_SLOWER", 100.0)  # no call is so short that a list is not shorter
    cluster.jobs = [
        {"submission_id": job, "status": "RUNNING", "message": job, "driver_node_id": "n1"} for job in JOBS
    ]


def calls(cluster: FakeCluster) -> tuple[int, int]:
    """Lists, and calls for one job."""
    paths = [path for _, path in cluster.calls]
    return paths.count("/api/jobs/"), sum(path.startswith("/api/jobs/j") for path in paths)


def assert_shared(cluster: FakeCluster, but: int = 0) -> None:
    """One burst of calls has been followed by one list."""
    lists, single = calls(cluster)
    assert lists == 1
    assert len(JOBS) + but <= single <= len(JOBS) + but + 1  # the first of a burst may not see it as one


async def ask(jobs: Iterable[str], ray_conn_id: str = "ray_default") -> list[JobInfo | None]:
    return await asyncio.gather(*(RayHook(ray_conn_id).aget_status(job) for job in jobs))


@pytest.mark.slow
@async_test
async def test_list_answers_all_who_ask_in_a_second_and_says_the_same(cluster: FakeCluster) -> None:
    called = await ask(JOBS)
    assert calls(cluster) == (0, 40)
    assert await ask(JOBS) == called == [JobInfo("RUNNING", job, "n1") for job in JOBS]
    assert_shared(cluster)
    await close_clients()


@async_test
async def test_who_waits_alone_calls_at_once(cluster: FakeCluster) -> None:
    for _ in range(3):
        await ask(["j0"])
        await asyncio.gather(ask(["j0"]), ask(["j0"]))
    assert calls(cluster) == (0, 9)
    await close_clients()


@pytest.mark.slow
@async_test
async def test_job_that_is_not_in_the_list_is_asked_for(cluster: FakeCluster) -> None:
    await ask(JOBS)
    cluster.status = None
    assert (await ask([*JOBS, "junk"]))[-1] is None
    assert_shared(cluster, but=1)
    await close_clients()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow", "too slow", "refused"])
@async_test
async def test_list_that_costs_more_than_its_calls_or_fails_is_not_made_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(status_poller, "_SLOWER", 1.0)
    for _ in range(5):  # one after another, so that none delays another
        await ask(["j0"])
    if fault == "refused":
        cluster.lists = False
    else:
        cluster.list_seconds = 1.0
        monkeypatch.setattr(status_poller, "_MOST_LIST_SECONDS", 9.0 if fault == "slow" else 0.3)
    for _ in range(3):
        assert None not in await ask(JOBS[:10])
    lists, single = calls(cluster)
    answered = 9 if fault == "slow" else 0
    assert lists == 1
    assert 35 - answered <= single <= 36 - answered
    monkeypatch.setattr(status_poller, "_TRY_AGAIN_SECONDS", 0.0)
    await ask(JOBS[:10])
    assert calls(cluster)[0] == 2
    await close_clients()


@pytest.mark.slow
@async_test
async def test_connections_with_other_rights_share_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(name: str, token: str) -> None:
        value: dict[str, Any] = {"conn_type": "ray", "host": cluster.address, "password": token}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(value))

    cluster.token = "right-token"
    connect("A", "right-token")
    connect("B", "wrong-token")
    await ask(JOBS, "a")
    await ask(JOBS, "a")
    before = calls(cluster)
    with pytest.raises(RayConnectionError, match="refuses the token"):
        await ask(JOBS, "b")
    assert calls(cluster)[0] == before[0]
    await close_clients()


@pytest.mark.slow
@async_test
async def test_who_stops_waiting_takes_the_answer_from_nobody(cluster: FakeCluster) -> None:
    await ask(JOBS)
    first = asyncio.create_task(RayHook().aget_status("j0"))
    others = asyncio.create_task(ask(JOBS[1:]))
    await asyncio.sleep(0.05)
    first.cancel()
    assert None not in await others
    assert_shared(cluster)
    await close_clients()
