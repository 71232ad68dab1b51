"""The example whose slices have clusters of their own, on real Airflow and real Ray: the Kubernetes API, and
KubeRay's operator, are those of tests."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.clusters.kuberay.ray_job import owner_of
from demo.customers import write_customers
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.kube.heads import RealHeads
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import Kube
from tests.support.marks import long
from tests.support.scene import DAY
from tests.support.tables import Table

EXAMPLE = "customers_own_cluster"


@pytest.fixture
def operator(airflow: Airflow, kube: Kube) -> Iterator[RayOperator]:
    end_scheduled_runs(airflow)
    kube.store.reset_clock()  # which another test moved: GPU seconds are counted by it and by ours
    for left in kube.objects("rayjobs"):
        kube.store.delete("rayjobs", "ml", left["metadata"]["name"])
    with RayOperator(kube, RealHeads()) as operator:
        yield operator


def end_scheduled_runs(airflow: Airflow) -> None:
    """Of the example, whose schedule has Airflow run yesterday as soon as it knows the DAG."""
    wait_for(lambda: airflow.api.runs(EXAMPLE) or None, LIMIT, f"a run of {EXAMPLE}")
    for run in airflow.api.runs(EXAMPLE):
        if run["state"] not in ("success", "failed"):
            airflow.api.mark_run(Task(EXAMPLE, run["dag_run_id"]), "failed")


def ask(airflow: Airflow, day: str) -> Task:
    """The day's run, which Airflow makes when the day is over."""
    over = dt.datetime.fromisoformat(day) + dt.timedelta(days=1)
    task = airflow.api.trigger(EXAMPLE, logical_date=f"{over.isoformat()}Z")
    return replace(task, task_id="infer_industry")


def wait_for_nothing(operator: RayOperator) -> None:
    until = time.monotonic() + 60
    while left := operator.leftovers():
        assert time.monotonic() < until, left
        time.sleep(0.5)


class Made:
    """A task whose job has answered one batch of four, on a cluster of its own, and is held there."""

    def __init__(self, airflow: Airflow, operator: RayOperator, make_table: Callable[..., Table]) -> None:
        self.airflow, self.operator, self.table = airflow, operator, make_table(DAY)

    def begin(self, mode: str, kind: str = "made") -> Task:
        self.table.hold(DAY, 1)
        self.task = self.airflow.api.trigger(f"{kind}_{mode}", conf={"table": self.table.name, "slice": DAY})
        self.table.wait_answered(DAY, 1)
        if mode == "deferred":
            self.airflow.api.wait(self.task, "deferred")
        return self.task

    def end(self) -> None:
        self.table.release(DAY)
        assert self.airflow.api.finish(self.task) == "success"
        wait_for_nothing(self.operator)

    @property
    def head(self) -> str:
        cluster = self._job["status"]["rayClusterName"]
        pods = [pod["metadata"] for pod in self.operator.kube.objects("pods")]
        [name] = [pod["name"] for pod in pods if pod["labels"]["ray.io/cluster"] == cluster]
        return str(name)

    @property
    def state(self) -> str:
        """KubeRay's word for the cluster."""
        return str(self._job["status"]["jobDeploymentStatus"])

    @property
    def _job(self) -> dict[str, Any]:
        jobs = self.operator.kube.objects("rayjobs")
        [job] = [job for job in jobs if owner_of(job).startswith(self.task.dag_id)]
        return job


@pytest.fixture
def made(airflow: Airflow, operator: RayOperator, make_table: Callable[..., Table]) -> Made:
    return Made(airflow, operator, make_table)


@pytest.mark.parametrize("mode", ["deferred", long("waiting")], indirect=True)
def test_lost_head_costs_the_rows_in_flight_and_leaves_nothing(made: Made, mode: str) -> None:
    made.begin(mode)
    made.operator.kill_pod(made.head, "OOMKilled")
    made.end()
    assert len(made.table.answered(DAY)) <= 6


@pytest.fixture
def redis(redis_address: str, tmp_path: Path) -> Iterator[None]:
    """Debian's, where a head leaves what it knows."""
    if (program := shutil.which("redis-server")) is None:
        pytest.skip("needs Redis: apt-get install redis-server")
    host, port = redis_address.split(":")
    command = [program, "--bind", host, "--port", port, "--dir", str(tmp_path), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield
        process.kill()


@pytest.mark.long
def test_head_that_comes_back_with_its_memory_costs_the_rows_in_flight(made: Made, redis: None) -> None:
    """GCS fault tolerance: the head knows its jobs again, but their processes died with it."""
    made.begin("deferred", "recovering")
    made.operator.kill_pod(made.head, "OOMKilled")
    made.end()
    assert len(made.table.answered(DAY)) <= 6


@pytest.mark.long
def test_killed_worker_finds_its_cluster_again(made: Made) -> None:
    task = made.begin("waiting")
    made.airflow.worker(task).kill()
    made.airflow.api.wait(task, "running", try_number=2)
    made.end()
    assert len(made.table.answered(DAY)) == 4


def test_marked_task_frees_its_gpus(made: Made) -> None:
    task = made.begin("deferred")
    made.airflow.api.mark(task, "failed")
    made.table.release(DAY)
    wait_for(lambda: made.state == "Complete" or None, LIMIT, "the job to end", lambda: made.state)
    made.operator.kube.store.pass_time(300)  # KubeRay's, which ends the cluster without Airflow
    heads = made.operator.heads
    wait_for(lambda: not heads.living() or None, LIMIT, "the cluster to end", heads.living)


def test_slice_is_answered_on_a_cluster_that_comes_and_goes_with_it(
    airflow: Airflow, operator: RayOperator, data: Path
) -> None:
    write_customers(data / "customers", ["2026-03-01"], rows=50)
    operator.hold_pods("l4-spot", "Unschedulable")
    task = ask(airflow, "2026-03-01")
    airflow.api.wait(task, "deferred")  # no worker waits for pods
    airflow.api.wait_logged(task, "Insufficient nvidia.com/gpu")
    operator.release_pods()
    assert airflow.api.finish(task) == "success"
    result = airflow.api.xcom(task)
    assert result["counts"]["succeeded"] + result["counts"]["quarantined"] == 50
    held = result["gpus_held"]
    assert held["in_use"] == 0 < held["total"]  # keywords need no GPU
    assert (data / "industries_own_cluster" / "ds=2026-03-01" / "_SUCCESS").exists()
    wait_for_nothing(operator)


def test_days_share_a_cluster_that_ends_with_the_last(
    airflow: Airflow, operator: RayOperator, make_table: Callable[..., Table]
) -> None:
    days = ["2026-03-01", "2026-03-02"]
    table = make_table(*days)
    for day in days:
        table.hold(day, 1)
    run = airflow.api.trigger("shared_deferred", conf={"table": table.name, "days": days})
    for day in days:
        table.wait_answered(day, 1)
    [cluster] = operator.kube.objects("rayclusters")
    for day in days:
        table.release(day)
    end = replace(run, task_id="end")
    assert airflow.api.finish(end) == "success"
    assert all(table.rows_right(day) for day in days)
    assert cluster["metadata"]["labels"]["ray.io/originated-from-cr-name"] == "shared-deferred"
    wait_for_nothing(operator)
