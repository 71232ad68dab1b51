from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.clusters.base import Holder, Order
from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from airflow_provider_raydatallm.clusters.kuberay.ray_job import to_ray_job
from tests.support.kube.server import Kube, kube_server
from tests.support.kube.tasks import CLUSTER
from tests.support.paths import ROOT

HERE = ["--namespace", "ml"]


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    with kube_server() as kube:
        connection = {"conn_type": "kubernetes", "extra": {"kube_config": kube.kubeconfig()}}
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
        yield kube


def make(kube: Kube, name: str, state: str) -> None:
    order = Order(Blueprint.parse({"template": CLUSTER, "name": name, "lifetime": "2h"}), 60)
    kube.store.create("rayjobs", "ml", to_ray_job(order, Holder(f"daily/{name}/infer/-1", 1)))
    status = {"jobDeploymentStatus": state, "startTime": "2026-01-31T10:00:00Z"}
    if state == "Failed":
        status |= {"reason": "DeadlineExceeded", "message": "it has passed"}
        status["endTime"] = "2026-01-31T12:00:00Z"
    kube.store.patch("rayjobs", "ml", name, lambda job: {**job, "status": status}, status=True)


def names(kube: Kube) -> list[str]:
    return sorted(job["metadata"]["name"] for job in kube.objects("rayjobs"))


def test_clusters_are_listed_with_who_needs_them_and_their_end(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clusters", "list", *HERE]) == 0
    assert capsys.readouterr().out == "no Ray cluster of a task is there\n"
    make(kube, "day", "Waiting")
    make(kube, "night", "Failed")
    assert main(["clusters", "list", *HERE, "--json"]) == 0
    day, night = json.loads(capsys.readouterr().out)
    assert (day["name"], day["state"], day["owner"], day["holders"], day["ends_by"]) == (
        "day", "Waiting", "daily/day/infer/-1", 1, "2026-01-31T12:00:00+00:00",
    )  # fmt: skip
    assert (night["has_ended"], night["reason"], night["ends_by"]) == (
        True, "DeadlineExceeded: it has passed", "",
    )  # fmt: skip
    assert main(["clusters", "list", *HERE]) == 0
    assert "night: Failed (DeadlineExceeded: it has passed), since " in capsys.readouterr().out


def test_those_that_have_ended_are_removed_and_no_others(kube: Kube) -> None:
    make(kube, "day", "Waiting")
    make(kube, "night", "Failed")
    assert main(["clusters", "clean", *HERE]) == 0
    assert names(kube) == ["day"]
    assert main(["clusters", "end", "day", *HERE]) == 0
    assert names(kube) == []


def test_example_dag_removes_them(kube: Kube) -> None:
    make(kube, "day", "Waiting")
    make(kube, "night", "Failed")
    [task] = DagBag(str(ROOT / "dags" / "clean_clusters.py")).dags["clean_clusters"].tasks
    assert task.execute({}) == ["night"]
    assert names(kube) == ["day"]


@pytest.mark.parametrize(("words", "says"), [
    (["end"], "neither a name nor --all"),
    (["end", "gone"], "there is no Ray cluster 'gone'; there are: day"),
    (["list", "--kubernetes-conn-id", "none"], "there is no connection 'none'"),
])  # fmt: skip
def test_error_says_what_is_wrong(
    kube: Kube, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    make(kube, "day", "Waiting")
    assert main(["clusters", words[0], *HERE, *words[1:]]) == 1
    assert says in capsys.readouterr().err
    assert names(kube) == ["day"]
