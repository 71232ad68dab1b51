"""A trigger whose triggerer runs on another machine than its task's worker."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.exceptions import RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
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
    job = JobRef("ray_default", 5.0, 600.0, None, None, 0.0, "j", "n", local_head="of the worker's machine")
    verdict = verdict_of(job)
    assert isinstance(verdict, ClusterUnreachable)
    assert verdict.refused
    assert "deferrable=False" in verdict.message
    assert not (tmp_path / "head").exists()


def test_trigger_that_dag_test_runs_in_the_tasks_process_lets_the_job_publish() -> None:
    job = JobRef("ray_default", 5.0, 600.0, 1800.0, None, 0.0, "j", "n")
    assert asyncio.run(RayJobTrigger(asdict(job), True)._still_waits())


def test_embedded_ray_that_does_not_run_is_not_started_by_a_waiter(tmp_path: Path) -> None:
    with pytest.raises(RayUnreachableError, match="does not run"):
        RayHook("ray_default", local_head="x").call(jobs_api.get_version())
    assert not (tmp_path / "head").exists()


def test_embedded_ray_has_an_identity_that_its_jobs_carry_and_a_cluster_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RayHook("ray_default").local_head is None  # none was ever started here
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "id").write_text("this machine")
    assert RayHook("ray_default").local_head == "this machine"
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "ray://ray.example.com:8265")
    assert RayHook("ray_default").local_head is None
