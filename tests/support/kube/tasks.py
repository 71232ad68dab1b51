"""Tasks that have clusters made by the KubeRay of tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.clusters.base import ClusterStartingError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task.job.tracker import JobTracker
from airflow_provider_raydatallm.task.job.waiter import JobRef
from tests.support.context import StateStore, context_of
from tests.support.fake_cluster import FakeCluster
from tests.support.kube.heads import FakeHeads
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import Kube

CONNECTION = "kuberay"
CONTAINER = {"name": "ray", "image": "rayproject/ray-llm:2.60.0"}
POD = {"spec": {"containers": [CONTAINER]}}
SPEC = {
    "rayVersion": "2.60.0",
    "headGroupSpec": {"rayStartParams": {}, "template": POD},
    "workerGroupSpecs": [{"groupName": "l4", "replicas": 1, "rayStartParams": {}, "template": POD}],
}
CLUSTER: dict[str, Any] = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": SPEC}


class World:
    """Kubernetes with KubeRay's operator, and tasks that have clusters made."""

    def __init__(self, kube: Kube, operator: RayOperator, folder: str) -> None:
        self.kube, self.operator, self._folder = kube, operator, folder

    def tracker(
        self, key: str, store: StateStore | None = None, *, try_number: int = 1, **leaves: Any
    ) -> JobTracker:
        cluster = {"template": CLUSTER, "namespace": "ml", **leaves}
        return tracker_of(key, self._folder, store, try_number, ray_conn_id=CONNECTION, cluster=cluster)

    def submit(self, tracker: JobTracker) -> JobRef:
        """Once its cluster runs."""
        self.wait_for_cluster(tracker)
        return tracker.submit()

    def wait_for_cluster(self, tracker: JobTracker) -> None:
        def has_started() -> bool:
            try:
                tracker.hook.acquire()
            except ClusterStartingError:
                return False
            return True

        eventually(has_started)

    @property
    def job(self) -> dict[str, Any]:
        [job] = self.kube.objects("rayjobs")
        return job

    @property
    def head(self) -> FakeCluster:
        heads = self.operator.heads
        assert isinstance(heads, FakeHeads)
        return heads.server

    def end_job(self, status: str = "SUCCEEDED") -> None:
        for job in self.head.jobs:
            job["status"] = status

    def nothing_is_left(self) -> bool:
        return not self.operator.leftovers()


def tracker_of(
    key: str, folder: str, store: StateStore | None = None, try_number: int = 1, **arguments: Any
) -> JobTracker:
    """Returns that of a task, which finds or submits its job."""
    with DAG(key, schedule=None):
        task = Task(
            task_id="t", slice_key=key, input_path="/no/in", prompt="{name}", output_path=folder,
            model_source="m", limits={"queue": "10m"}, **arguments,
        )  # fmt: skip
    context = context_of(task, StateStore() if store is None else store, try_number=try_number)
    return task._build_tracker(context, None)


class Task(RayLLMBatchOperator):
    def _wait_options(self, context: Any) -> JobRef:
        return replace(super()._wait_options(context), poll_interval=0.05, reconnect_timeout=2.0)


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def set_kubernetes(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    of_kubernetes = {"conn_type": "kubernetes", "extra": {"kube_config": kube.kubeconfig()}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(of_kubernetes))
