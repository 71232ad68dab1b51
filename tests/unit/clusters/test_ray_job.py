from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_provider_raydatallm.clusters.base import Holder, Order
from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from airflow_provider_raydatallm.clusters.kuberay import ray_job
from tests.support.kube.tasks import CLUSTER

HOLDER = Holder("daily/scheduled__2026-01-31T00:00:00+00:00/infer/3", 2)


def job_of(holder: Holder = HOLDER, queue_s: float = 3600, **leaves: Any) -> dict[str, Any]:
    return ray_job.to_ray_job(Order(Blueprint.parse({"template": CLUSTER, **leaves}), queue_s), holder)


def test_kuberay_ends_a_cluster_that_nobody_uses_by_itself() -> None:
    spec = job_of(lifetime="6h")["spec"]
    assert spec["submissionMode"] == "InteractiveMode"
    assert spec["backoffLimit"] == 0
    assert spec["shutdownAfterJobFinishes"]
    assert (spec["preRunningDeadlineSeconds"], spec["activeDeadlineSeconds"]) == (3600, 6 * 3600)
    assert job_of(queue_s=600)["spec"]["preRunningDeadlineSeconds"] == 660


def test_cluster_that_tasks_share_never_has_a_job_and_ends_with_its_lifetime() -> None:
    job = job_of(name="backfill", lifetime=7200)
    assert job["metadata"]["name"] == "backfill"
    assert job["spec"]["preRunningDeadlineSeconds"] == 7200
    assert ray_job.is_shared(job)
    assert not ray_job.is_shared(job_of())


@pytest.mark.parametrize("task", ["Über/…/x/-1", "d" * 250 + "/run/task/-1", "a/b/c/4", "2026/r/t/-1"])
def test_names_and_labels_are_valid_whatever_the_task_is_called(task: str) -> None:
    metadata = job_of(Holder(task, 1))["metadata"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", metadata["name"])
    assert len(metadata["name"]) <= 47
    for value in metadata["labels"].values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
    for key in (*metadata["labels"], *metadata["annotations"]):
        assert len(key.rpartition("/")[2]) <= 63
    assert metadata["annotations"]["airflow-ray-llm/owner"] == task


def test_cluster_that_is_asked_for_twice_has_one_name_and_one_beside_it_another() -> None:
    order = Order(Blueprint.parse({"template": CLUSTER}), 3600)
    names = [ray_job.to_ray_job(order, HOLDER, others)["metadata"]["name"] for others in ((), (), ("x",))]
    assert len(set(names)) == 1
    assert ray_job.to_ray_job(order, HOLDER, names)["metadata"]["name"] not in names
    assert ray_job.to_ray_job(order, Holder(HOLDER.task, 3))["metadata"]["name"] not in names


def test_newest_try_of_each_task_holds_it() -> None:
    job = job_of()
    job["metadata"]["annotations"] |= ray_job.hold_of(Holder("other", 1))
    assert ray_job.holds(job) == {ray_job.hash_of(HOLDER.task): 2, ray_job.hash_of("other"): 1}


def test_kueue_admits_it_first() -> None:
    job = job_of(queue="gpus")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job["spec"]["suspend"]
    assert not job_of()["spec"]["suspend"]
