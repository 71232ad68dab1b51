"""The example whose slices have clusters of their own, on real Airflow and real Ray: the Kubernetes API, and
KubeRay's operator, are those of tests."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo.customers import write_customers
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import Task
from tests.support.kube.heads import RealHeads
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import Kube


@pytest.fixture
def operator(kube: Kube) -> Iterator[RayOperator]:
    with RayOperator(kube, RealHeads()) as operator:
        yield operator


def ask(airflow: Airflow, day: str) -> Task:
    """The day's run, which Airflow makes when the day is over."""
    over = dt.datetime.fromisoformat(day) + dt.timedelta(days=1)
    task = airflow.api.trigger("customers_own_cluster", logical_date=f"{over.isoformat()}Z")
    return replace(task, task_id="infer_industry")


def wait_for_nothing(operator: RayOperator) -> None:
    until = time.monotonic() + 60
    while left := operator.leftovers():
        assert time.monotonic() < until, left
        time.sleep(0.5)


def test_slice_is_answered_on_a_cluster_that_comes_and_goes_with_it(
    airflow: Airflow, operator: RayOperator, data: Path
) -> None:
    write_customers(data / "customers", ["2026-02-01"], rows=50)
    operator.hold_pods("l4-spot", "Unschedulable")
    task = ask(airflow, "2026-02-01")
    airflow.api.wait(task, "deferred")  # no worker waits for pods
    airflow.api.wait_logged(task, "Insufficient nvidia.com/gpu")
    operator.release_pods()
    assert airflow.api.finish(task) == "success"
    result = airflow.api.xcom(task)
    assert result["counts"]["succeeded"] + result["counts"]["quarantined"] == 50
    assert (data / "industries_own_cluster" / "ds=2026-02-01" / "_SUCCESS").exists()
    wait_for_nothing(operator)
