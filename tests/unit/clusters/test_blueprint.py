from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from tests.support.kube.tasks import CLUSTER, CONTAINER, SPEC


def with_env(*variables: dict[str, Any]) -> dict[str, Any]:
    return with_pod({"containers": [{**CONTAINER, "env": list(variables)}]})


def with_pod(pod: dict[str, Any]) -> dict[str, Any]:
    return with_leaf("headGroupSpec", {"rayStartParams": {}, "template": {"spec": pod}})


def with_leaf(name: str, value: Any) -> dict[str, Any]:
    return {**CLUSTER, "spec": {**SPEC, name: value}}


@pytest.mark.parametrize("kind", ["dict", "text", "file", "ray job"])
def test_template_is_a_dict_or_yaml(kind: str, tmp_path: Path) -> None:
    (tmp_path / "l4.yaml").write_text(yaml.safe_dump(CLUSTER))
    template: Any = {
        "dict": CLUSTER,
        "text": yaml.safe_dump(CLUSTER),
        "file": "l4.yaml",
        "ray job": {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"rayClusterSpec": SPEC}},
    }[kind]
    blueprint = Blueprint.parse({"template": template}, tmp_path)
    assert blueprint.spec == {"authOptions": {"mode": "token"}, **SPEC}
    assert blueprint.digest == Blueprint.parse({"template": CLUSTER}).digest


def test_template_decides_whether_a_token_is_asked_for() -> None:
    template = {**CLUSTER, "spec": {**SPEC, "authOptions": {"mode": "disabled"}}}
    assert Blueprint.parse({"template": template}).spec["authOptions"] == {"mode": "disabled"}


def test_clusters_of_other_pods_are_not_shared() -> None:
    other = Blueprint.parse({"template": with_env({"name": "A", "value": "1"})})
    assert other.digest != Blueprint.parse({"template": CLUSTER}).digest


@pytest.mark.parametrize(("argument", "problem"), [
    ("l4.yaml", "cluster is a str: give a dict with a template"),
    ({}, "cluster has no template: give one, or an image"),
    ({"template": "gone.yaml"}, r"cluster\.template: cannot read .*gone\.yaml"),
    ({"template": "- a"}, "cluster.template: it is '- a': give a RayCluster"),
    ({"template": "a: ["}, "cluster.template: it is no YAML"),
    ({"template": {**CLUSTER, "apiVersion": "ray.io/v1alpha1"}}, "it is a 'RayCluster' of 'ray.io/v1alpha1'"),
    ({"template": {**CLUSTER, "kind": "RayService"}}, "it is a 'RayService' of 'ray.io/v1'"),
    ({"template": {**CLUSTER, "spec": None}}, "the RayCluster has no spec of a cluster"),
    ({"template": {**CLUSTER, "spec": {"headGroupSpec": {}}}}, "it lacks headGroupSpec.template"),
    ({"template": with_pod({"containers": []})}, r"it lacks headGroupSpec\.template\.spec\.containers"),
    ({"template": with_pod({"containers": {"name": "ray"}})}, r"it lacks headGroupSpec.*spec\.containers"),
    ({"template": with_env({"value": "1"})}, r"it lacks headGroupSpec.*containers\.0\.env\.0\.name"),
    ({"template": with_leaf("authOptions", "token")}, r"authOptions: Input should be"),
    ({"template": with_leaf("suspend", True)}, "KubeRay would never start its pods"),
    ({"template": with_leaf("autoscalerOptions", {"env": [{"name": "API_KEY", "value": "x"}]})},
     "variable API_KEY holds a secret"),
    ({"template": with_leaf("gcsFaultToleranceOptions", {"redisPassword": {"value": "x"}})},
     "redisPassword holds a secret"),
    ({"template": {**CLUSTER, "spec": {**SPEC, "rayVersion": None}}}, "it has no rayVersion"),
    ({"template": with_env({"name": "HF_TOKEN", "value": "hf_x"})}, "variable HF_TOKEN holds a secret"),
    ({"template": CLUSTER, "name": "n" * 48}, "is no name for a Ray cluster: give at most 47"),
    ({"template": CLUSTER, "name": "2026-01-31"}, "the first of them a letter"),
    ({"template": CLUSTER, "namespace": "Team A"}, "'Team A' is no namespace"),
    ({"template": CLUSTER, "lifetime": "soon"}, "cluster.lifetime: 'soon' is not a duration"),
    ({"template": CLUSTER, "address": "ray.example.com"}, "cluster.address: "),
    ({"template": CLUSTER, "address": "https://ray.example.com/{name}"}, "has braces other than"),
    ({"template": CLUSTER, "images": "x"}, "cluster has 'images'; known are template, namespace, .*, image"),
])  # fmt: skip
def test_error_names_the_argument(argument: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Blueprint.parse(argument)


@pytest.mark.parametrize("value", ["$(OTHER)", "$OTHER", "/var/run/secrets/token"])
def test_variable_that_says_where_a_secret_is_holds_none(value: str) -> None:
    Blueprint.parse({"template": with_env({"name": "HF_TOKEN", "value": value})})


def test_cluster_without_authentication_needs_no_version() -> None:
    spec = {**SPEC, "authOptions": None, "rayVersion": None}
    Blueprint.parse({"template": {**CLUSTER, "spec": spec}})


def test_secret_that_kubernetes_keeps_is_no_problem() -> None:
    of_secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    Blueprint.parse({"template": with_env(of_secret)})
