"""The cluster of a task that gives an image: what its engine needs, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from airflow_provider_raydatallm.clusters.derived import GpuNeeds, gpu_needs
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from tests.support.kube.heads import FakeHeads
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import kube_server

IMAGE = "rayproject/ray-llm:2.60.0-py311-cu128"
LABELS = {"cloud.google.com/gke-accelerator": "nvidia-l4"}


@pytest.mark.parametrize(("engine", "needs"), [
    ({}, GpuNeeds((1, 1), 1)),
    ({"kind": "vllm", "workers": [2, 6]}, GpuNeeds((2, 6), 1)),
    ({"kind": "vllm", "workers": "4", "kwargs": {"tensor_parallel_size": 2, "data_parallel_size": 2}},
     GpuNeeds((4, 4), 4)),
    ({"workers": 2, "kwargs": {"tensor_parallel_size": 8, "pipeline_parallel_size": 2,
                               "distributed_executor_backend": "ray"}}, GpuNeeds((32, 32), 1)),
    ({"kind": "vllm", "workers": "auto"}, GpuNeeds((1, 1), 1)),
    ({"kind": "keywords:Keywords"}, GpuNeeds((1, 1), 1)),
    ({"kind": "http"}, GpuNeeds((0, 0), 0)),
])  # fmt: skip
def test_nodes_are_those_that_the_engines_workers_fill(engine: dict[str, Any], needs: GpuNeeds) -> None:
    assert gpu_needs(engine) == needs


@pytest.mark.parametrize(
    ("image", "version"),
    [
        (IMAGE, "2.60.0"),
        ("registry:5000/team/llm:ray-2.60.1", "2.60.1"),
        ("rayproject/ray:2.60.0.4f3a9d-py311", "2.60.0"),
    ],
)
def test_version_of_ray_is_in_the_tag(image: str, version: str) -> None:
    blueprint = Blueprint.parse({"image": image}, needs=GpuNeeds())
    assert blueprint.spec["rayVersion"] == version
    assert blueprint.spec["authOptions"] == {"mode": "token"}


@pytest.mark.parametrize(("leaves", "problem"), [
    ({"image": "team/llm"}, "cluster.image is 'team/llm', which tells no version of Ray"),
    ({"image": "team/llm:latest"}, "which tells no version of Ray"),
    ({"node_selector": LABELS}, "cluster.image is None"),
    ({"image": IMAGE, "node_selector": "l4"}, "cluster.node_selector is 'l4': give a dict"),
    ({"image": IMAGE, "node_selector": {"spot": True}}, "give a dict of labels and their values"),
    ({"image": IMAGE, "template": {}}, "both a template and image"),
    ({"image": IMAGE, "spot": "yes"}, "cluster.spot is 'yes': give a dict"),
    ({"spot": LABELS, "template": {}}, "both a template and spot"),
])  # fmt: skip
def test_wrong_leaf_is_named(leaves: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Blueprint.parse(leaves, needs=GpuNeeds())


def test_cluster_without_an_engine_needs_a_template() -> None:
    with pytest.raises(ValueError, match="give a template here"):
        Blueprint.parse({"image": IMAGE, "name": "backfill"})


def test_clusters_of_other_needs_are_not_shared() -> None:
    leaves = {"image": IMAGE, "name": "backfill"}
    one, four = (Blueprint.parse(leaves, needs=GpuNeeds((1, 1), gpus)) for gpus in (1, 4))
    assert one.digest != four.digest


def test_operator_orders_what_its_engine_needs(tmp_path: Path) -> None:
    def task(**engine: Any) -> RayLLMBatchOperator:
        with DAG("d", schedule=None):
            return RayLLMBatchOperator(
                task_id="t", input_path="/in", prompt="{a}", output_path="/out", model_source="m",
                engine=engine, cluster={"image": IMAGE, "node_selector": LABELS},
            )  # fmt: skip

    order = task(workers=3, kwargs={"tensor_parallel_size": 2})._order()
    assert order is not None
    [group] = order.blueprint.spec["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert (group["replicas"], pod["nodeSelector"]) == (3, LABELS)
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    with pytest.raises(RayLLMInputError, match="tensor_parallel_size"):
        task(kwargs={"tensor_parallel_size": 0})._order()


@pytest.mark.parametrize(("nodes", "groups"), [
    ((4, 4), {"spot": (4, 4)}),
    ((2, 16), {"gpu": (2, 2), "spot": (0, 14)}),
])  # fmt: skip
def test_spot_nodes_have_all_workers_or_those_beyond_the_fewest(
    nodes: tuple[int, int], groups: dict[str, tuple[int, int]]
) -> None:
    leaves = {"image": IMAGE, "node_selector": LABELS, "spot": {"spot": "true"}}
    spec = Blueprint.parse(leaves, needs=GpuNeeds(nodes)).spec
    made = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    assert {name: (group["minReplicas"], group["maxReplicas"]) for name, group in made.items()} == groups
    pod = made["spot"]["template"]["spec"]
    assert pod["nodeSelector"] == {**LABELS, "spot": "true"}
    assert {toleration["key"] for toleration in pod["tolerations"]} == {"nvidia.com/gpu", *LABELS, "spot"}


@pytest.mark.parametrize("spot", [{}, {"spot": "true"}])
@pytest.mark.parametrize("needs", [GpuNeeds((1, 3), 4), GpuNeeds((0, 0), 0)])
def test_kubernetes_takes_it(needs: GpuNeeds, spot: dict[str, str]) -> None:
    spec = Blueprint.parse({"image": IMAGE, "node_selector": LABELS, "spot": spot}, needs=needs).spec
    with kube_server() as kube, RayOperator(kube, FakeHeads()):
        body = {"metadata": {"name": "a"}, "spec": spec, "apiVersion": "ray.io/v1", "kind": "RayCluster"}
        made = kube.store.create("rayclusters", "ml", body)
    for taken, given in zip(made["spec"]["workerGroupSpecs"], spec["workerGroupSpecs"], strict=True):
        assert given == {name: taken[name] for name in given}  # defaults beside it
    assert made["spec"].get("enableInTreeAutoscaling", False) == (needs.nodes == (1, 3))
