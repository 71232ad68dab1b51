"""When the package's triggers fire, run by Airflow's own trigger runner."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.executors.workloads import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.triggers.base import BaseTrigger

from airflow_provider_raydatallm import triggers
from airflow_provider_raydatallm.task import hold
from airflow_provider_raydatallm.task.queue.places import QueuePlace
from airflow_provider_raydatallm.triggers import task_trigger
from airflow_provider_raydatallm.triggers.question import QuestionTrigger
from airflow_provider_raydatallm.triggers.ray_job import RayJobTrigger
from airflow_provider_raydatallm.triggers.slice_published import SlicePublishedTrigger
from airflow_provider_raydatallm.triggers.submission_turn import SubmissionTurnTrigger
from airflow_provider_raydatallm.triggers.task_trigger import TaskTrigger
from tests.support.fake_cluster import FakeCluster

JOB: dict[str, Any] = {
    "ray_conn_id": "ray_default", "poll_interval": 5.0, "reconnect_timeout": 600.0, "orphan_timeout": None,
    "deadline": None, "since": 0.0, "submission_id": "j", "nonce": "n", "cluster": "connection:ray_default",
}  # fmt: skip
PLACE = QueuePlace("ray_default", "d/r/t/-1", 0.0, 1e12, None, 60.0, "connection:ray_default").__dict__

#: Triggers whose event is there at once: what they wait for is true, or an error.
AT_ONCE: dict[str, BaseTrigger] = {
    "job that ended": RayJobTrigger(JOB, True),
    "deadline that passed": RayJobTrigger({**JOB, "deadline": 1.0}, False),
    "job of another machine": RayJobTrigger({**JOB, "cluster": "embedded:ray_default@elsewhere"}, True),
    "turn": SubmissionTurnTrigger(PLACE),
    "turn that came too late": SubmissionTurnTrigger({**PLACE, "queue_timeout": 1.0}),
    "slice that cannot be there": SlicePublishedTrigger({"slice_path": "nosuch://a/b"}, 0.0),
    "question that nobody answered": QuestionTrigger("01a2b3c4-0000-7000-8000-000000000000"),
}
#: Arguments that another version of the provider wrote.
UNREADABLE: dict[str, BaseTrigger] = {
    "job": RayJobTrigger({"was": 1}, True),
    "slice": SlicePublishedTrigger({"was": 1}, 0.0),
}


class Runner(TriggerRunner):
    """A triggerer's event loop, with one trigger."""

    def __init__(self, trigger: BaseTrigger) -> None:
        super().__init__()
        path, kwargs = trigger.serialize()
        self.to_create.append(
            RunTrigger(id=1, classpath=path, encrypted_kwargs=Trigger.encrypt_kwargs(kwargs))
        )

    async def seconds(self) -> float:
        """Returns when the trigger has ended, with an event or with an error."""
        began = time.monotonic()
        await self.create_triggers()  # type: ignore[no-untyped-call]
        await asyncio.wait([self.triggers[1]["task"]], timeout=30)
        return time.monotonic() - began


@pytest.fixture
def ended_job(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster.status = "STOPPED"
    monkeypatch.setattr(hold, "withdraw", lambda ti_id: {})  # which asks Airflow
    monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", str(tmp_path / "head"))


@pytest.mark.slow
@pytest.mark.usefixtures("ended_job")
@pytest.mark.parametrize("waits_for", AT_ONCE)
def test_no_trigger_fires_in_a_deferrals_first_seconds(
    waits_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert task_trigger.EARLIEST_EVENT_SECONDS >= 10
    monkeypatch.setattr(task_trigger, "EARLIEST_EVENT_SECONDS", 0.5)
    runner = Runner(AT_ONCE[waits_for])
    assert asyncio.run(runner.seconds()) >= 0.5
    assert len(runner.events) == 1


@pytest.mark.slow
@pytest.mark.parametrize("waits_for", UNREADABLE)
def test_no_trigger_fails_in_a_deferrals_first_seconds(
    waits_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_trigger, "EARLIEST_EVENT_SECONDS", 0.5)
    runner = Runner(UNREADABLE[waits_for])
    assert asyncio.run(runner.seconds()) >= 0.5
    assert isinstance(runner.triggers[1]["task"].exception(), TypeError)


@pytest.mark.usefixtures("ended_job")
def test_trigger_that_fires_later_ends_at_once_when_it_is_cancelled() -> None:
    runner = Runner(RayJobTrigger(JOB, False))

    async def cancelled() -> float:
        ended = asyncio.create_task(runner.seconds())
        await asyncio.sleep(0.3)
        assert not runner.triggers[1]["task"].done()
        began = time.monotonic()
        runner.to_cancel.append(1)
        await runner.cancel_triggers()  # type: ignore[no-untyped-call]
        await ended
        return time.monotonic() - began

    assert asyncio.run(cancelled()) < 5
    assert not runner.events


@pytest.mark.slow
@pytest.mark.usefixtures("ended_job")
def test_trigger_that_dag_test_runs_fires_at_once() -> None:
    async def event() -> Any:
        return await asyncio.wait_for(anext(RayJobTrigger(JOB, True).run()), 5)

    assert asyncio.run(event()).payload["verdict"]


@pytest.mark.slow
def test_every_trigger_of_the_package_is_one_of_these() -> None:
    for module in pkgutil.iter_modules(triggers.__path__, f"{triggers.__name__}."):
        importlib.import_module(module.name)
    own = {kind for kind in subclasses(BaseTrigger) if kind.__module__.startswith(triggers.__name__)}
    assert own == {TaskTrigger, *subclasses(TaskTrigger)}
    assert {type(trigger) for trigger in AT_ONCE.values()} == own - {TaskTrigger}


def subclasses(kind: type[BaseTrigger]) -> set[type[BaseTrigger]]:
    return {below for sub in kind.__subclasses__() for below in (sub, *subclasses(sub))}
