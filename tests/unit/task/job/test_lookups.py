"""A task whose connections cannot be read for a while, with a real secrets backend that is away."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.exceptions import RayConnectionNotFoundError, RayUnreachableError
from airflow_provider_raydatallm.hooks import lookup
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.plugins import marked_job
from airflow_provider_raydatallm.task.job import cancel
from airflow_provider_raydatallm.task.job.verdict import ClusterUnreachable, Finished, Verdict
from airflow_provider_raydatallm.task.job.waiter import Intervals, JobRef, wait_for_job
from tests.support.context import StateStore, context_of
from tests.support.fake_cluster import FakeCluster, Log
from tests.support.sealed_backend import Vault, vault_of_this_process

CLUSTER = "connection:ray_default"
HUB = '{"conn_type": "huggingface", "password": "hub-sesame"}'
STORAGE = json.dumps({"conn_type": "aws", "login": "AKIA", "password": "storage-sesame"})
#: Where each connection that a task may need is named.
NEEDS: list[dict[str, Any]] = [
    {}, {"engine": "small"}, {"model_conn_id": "hub"},
    {"storage_conn_id": "storage", "allow_static_credentials": True},
]  # fmt: skip


@pytest.fixture
def vault(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Vault]:
    """It alone has the connections."""
    monkeypatch.delenv("AIRFLOW_CONN_RAY_DEFAULT")
    with vault_of_this_process(monkeypatch, tmp_path / "vault") as vault:
        engines = {"small": {"kwargs": {"max_model_len": 64}}}
        ray = {"conn_type": "ray", "host": cluster.address, "extra": {"engines": engines}}
        vault.put("ray_default", json.dumps(ray))
        vault.put("hub", HUB)
        vault.put("storage", STORAGE)
        yield vault


class Task(RayLLMBatchOperator):
    """Asks often, and for a time of the test's."""

    reconnect_s = 60.0

    def _wait_options(self, context: Any) -> JobRef:
        options = super()._wait_options(context)
        return replace(options, poll_interval=0.05, reconnect_timeout=self.reconnect_s)


def task(reconnect_s: float = 60.0, **given: Any) -> Task:
    with DAG("d", schedule=None):
        operator = Task(
            task_id="t", slice_key="s", input_path="/no/in", output_path="/no/out", prompt="{name}",
            model_source="m", **given,
        )  # fmt: skip
    operator.reconnect_s = reconnect_s
    return operator


def soon(action: Callable[[], object]) -> None:
    threading.Timer(0.3, action).start()


@pytest.mark.slow
@pytest.mark.parametrize("needs", NEEDS)
def test_backend_that_is_away_for_a_while_costs_no_try(
    vault: Vault, cluster: FakeCluster, needs: dict[str, Any]
) -> None:
    vault.seal()
    soon(vault.open)
    operator = task(**needs)
    operator._build_tracker(context_of(operator), None).submit()
    assert len(cluster.jobs) == 1


@pytest.mark.parametrize("needs", NEEDS)
def test_backend_that_stays_away_fails_the_task_so_that_it_is_retried(
    vault: Vault, cluster: FakeCluster, needs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "NOT_FOUND_SECONDS", 0.0)
    operator = task(0.1, **needs)
    vault.seal()
    with pytest.raises(RayUnreachableError, match="SealedBackend fails") as e:
        operator.execute(context_of(operator))
    assert not isinstance(e.value, AirflowFailException)
    vault.open()
    for file in vault.folder.iterdir():
        file.unlink()
    with pytest.raises(RayConnectionNotFoundError, match="there is no connection '") as absent:
        operator.execute(context_of(operator))
    assert not isinstance(absent.value, AirflowFailException)
    assert cluster.jobs == []


@pytest.mark.slow
def test_next_try_waits_for_the_backend_and_finds_the_job(vault: Vault, cluster: FakeCluster) -> None:
    store, operator = StateStore(), task()
    job = operator._build_tracker(context_of(operator, store), None).submit()
    vault.seal()
    soon(vault.open)
    found = operator._build_tracker(context_of(operator, store, try_number=2), None).find_job()
    assert found is not None
    assert found.submission_id == job.submission_id
    assert cluster.jobs[0]["status"] == "RUNNING"


def waited(reconnect_s: float) -> Verdict:
    ref = JobRef("ray_default", 0.05, reconnect_s, None, None, time.time(), "j", "n", cluster=CLUSTER)

    async def wait() -> Verdict:
        try:
            return await wait_for_job(ref, Log(), always, Intervals(min_poll=0.05))
        finally:
            await close_clients()

    return asyncio.run(wait())


async def always() -> bool:
    return True


@pytest.mark.slow
def test_waiter_whose_backend_is_away_waits_and_gives_up_retryably(
    vault: Vault, cluster: FakeCluster
) -> None:
    """A triggerer that takes over has read no connection yet."""
    cluster.log = [encode_line("report", "n", {"outcome": "published"})]
    vault.seal()
    verdict = waited(0.2)
    assert isinstance(verdict, ClusterUnreachable)
    assert not verdict.refused
    soon(vault.open)
    assert isinstance(waited(60.0), Finished)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the task or its trigger", "the API server"])
def test_job_is_stopped_although_its_connection_cannot_be_read_at_once(
    vault: Vault, cluster: FakeCluster, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, operator = StateStore(), task()
    tracker = operator._build_tracker(context_of(operator, store), None)
    job = tracker.submit()
    monkeypatch.setattr(cancel, "_read_owner_and_state", lambda attempt: (None, "failed"))
    monkeypatch.setattr(marked_job, "_read_record", lambda attempt: tracker.record)
    vault.seal()
    soon(vault.open)
    if by == "the API server":
        asyncio.run(marked_job.stop_marked_job(tracker.task))
    else:
        # Of a worker's process that has read nothing; else it would not even ask.
        hook = operator._build_tracker(context_of(operator, store), None).hook_of(job)
        stop = cancel.stop_own_job(job, tracker.task, Log(), hook, deferred=True, timeout_s=20)
        asyncio.run(stop)
    assert cluster.jobs[0]["status"] == "STOPPED"


def test_process_that_has_read_its_connection_stops_the_job_without_it(
    vault: Vault, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel, "_read_owner_and_state", lambda attempt: (None, "failed"))
    operator = task()
    tracker = operator._build_tracker(context_of(operator), None)
    job = tracker.submit()
    vault.seal()
    asyncio.run(operator._stop(job, tracker))
    assert cluster.jobs[0]["status"] == "STOPPED"


def test_task_that_submitted_needs_no_lookup_to_defer(vault: Vault, cluster: FakeCluster) -> None:
    operator = task()
    tracker = operator._build_tracker(context_of(operator), None)
    job = tracker.submit()
    vault.seal()
    assert cluster.address in tracker.hook_of(job).job_url(job.submission_id)
    assert job.cluster == CLUSTER
