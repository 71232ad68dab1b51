"""A trigger whose triggerer runs on another machine than its task's worker."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.task.job.verdict import ClusterUnreachable, from_event
from airflow_provider_raydatallm.task.job.waiter import JobRef
from airflow_provider_raydatallm.triggers.ray_job import RayJobTrigger


@pytest.fixture(autouse=True)
def another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", str(tmp_path / "head"))
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "ray://local")


def verdict_of(job: JobRef) -> Any:
    async def first() -> Any:
        return await anext(RayJobTrigger(asdict(job), True).run())

    return from_event(asyncio.run(first()).payload)


def test_embedded_ray_of_another_machine_is_refused_at_once_and_none_is_started(tmp_path: Path) -> None:
    job = JobRef("ray_default", 5.0, 600.0, None, None, 0.0, "j", "n", cluster="embedded:c@of-the-worker")
    verdict = verdict_of(job)
    assert isinstance(verdict, ClusterUnreachable)
    assert verdict.refused
    assert "deferrable=False" in verdict.failure.text
    assert not (tmp_path / "head").exists()


def test_trigger_that_dag_test_runs_in_the_tasks_process_lets_the_job_publish() -> None:
    job = JobRef("ray_default", 5.0, 600.0, 1800.0, None, 0.0, "j", "n", cluster="connection:ray_default")
    assert asyncio.run(RayJobTrigger(asdict(job), True)._still_waits())
