"""What a task wants of the cluster that is made for it: the operator's argument `cluster`. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, ValidationError, field_validator

from airflow_provider_raydatallm.clusters.derived import GpuNeeds, derive_template
from airflow_provider_raydatallm.clusters.template import check_spec
from airflow_provider_raydatallm.contract.base import Contract, Options, Seconds

API_VERSION = "ray.io/v1"
#: KubeRay adds to the name of a RayJob what tells its cluster and pods.
_MAX_NAME = 47
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
#: An address: the API server passes calls on, and nothing else of Kubernetes need be reached.
BY_KUBERNETES = "kubernetes"
#: Of a template.
_INSTEAD = ("image", "node_selector", "spot")
_WITH_TOKEN = {"mode": "token"}
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _check_name(value: str) -> str:
    if len(value) > _MAX_NAME or not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is no name for a Ray cluster: give at most {_MAX_NAME} lower-case letters, digits "
            "and '-', the first of them a letter"
        )
    return value


def _check_namespace(value: str) -> str:
    if not _NAMESPACE.fullmatch(value):
        raise ValueError(f"{value!r} is no namespace: give at most 63 lower-case letters, digits and '-'")
    return value


class Blueprint(Contract):
    """What Kubernetes makes of a cluster, and for how long.

    template: a RayCluster, as a dict, or as YAML text; or the path of a YAML file, from the DAG's folder on.
        A RayJob counts as the cluster that it describes. Instead of it, `image` (with Ray's version in its
        tag), `node_selector` (labels of nodes with GPUs) and `spot` (further labels of those that may be
        reclaimed) make a cluster as the task's engine needs it.
    namespace: where it is made. Default: the connection's.
    kubernetes_conn_id: Airflow's connection to Kubernetes.
    name: makes one cluster of that name for all tasks that give it: the first one makes it, and the last one
        that needs it ends it. Default: a cluster for this task alone.
    lifetime: after which KubeRay ends it, whoever needs it.
    queue: a LocalQueue of Kueue, which admits it.
    address: of its Jobs API, where that is not reached by its service in Kubernetes, such as
        "https://ray.example.com/{cluster}"; `{service}` and `{namespace}` are replaced, too. "kubernetes":
        the API server of Kubernetes passes calls on.
    """

    template: Options
    namespace: Annotated[str, AfterValidator(_check_namespace)] | None = None
    kubernetes_conn_id: Annotated[str, Field(min_length=1)] = "kubernetes_default"
    name: Annotated[str, AfterValidator(_check_name)] | None = None
    lifetime: Seconds = 86400.0
    queue: Annotated[str, AfterValidator(_check_name)] | None = None
    address: str | None = None

    @field_validator("template", mode="before")
    @classmethod
    def _read_template(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError as e:
            raise ValueError(f"it is no YAML: {e}") from None
        if not isinstance(read, Mapping):
            raise ValueError(f"it is {value[:80]!r}: give a RayCluster as a dict, or as YAML")
        return dict(read)

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: dict[str, Any]) -> dict[str, Any]:
        api, kind = value.get("apiVersion"), value.get("kind")
        if api != API_VERSION or kind not in ("RayCluster", "RayJob"):
            raise ValueError(
                f"it is a {kind!r} of {api!r}: give a RayCluster, or a RayJob, of {API_VERSION!r}"
            )
        check_spec(_spec_of(value))
        return value

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value in (None, BY_KUBERNETES):
            return value
        if not re.fullmatch(r"https?://\S+", value):
            raise ValueError(f"{value!r} is neither http://, nor https://, nor {BY_KUBERNETES!r}")
        try:
            _ = value.format(cluster="", service="", namespace="")
        except (KeyError, IndexError, ValueError, AttributeError):
            raise ValueError(
                f"{value!r} has braces other than {{cluster}}, {{service}} and {{namespace}}"
            ) from None
        return value

    @classmethod
    def parse(cls, value: Any, folder: Path | None = None, needs: GpuNeeds | None = None) -> Blueprint:
        """
        :param folder: of the DAG.
        :param needs: of the task's engine; None where there is none.
        :raises ValueError: naming the argument that cannot work.
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"cluster is a {type(value).__name__}: give a dict with a template")
        leaves = dict(value)
        known = [*cls.model_fields, *_INSTEAD]
        if unknown := [leaf for leaf in leaves if leaf not in known]:
            raise ValueError(f"cluster has {unknown[0]!r}; known are {', '.join(known)}")
        if not leaves.keys() & {"template", *_INSTEAD}:
            raise ValueError("cluster has no template: give one, or an image")
        if given := leaves.keys() & {*_INSTEAD}:
            if "template" in leaves:
                raise ValueError(f"cluster has both a template and {min(given)}: leave one out")
            if needs is None:
                raise ValueError("cluster.image goes by what a task's engine needs: give a template here")
            image, labels = leaves.pop("image", None), leaves.pop("node_selector", {})
            leaves["template"] = derive_template(image, labels, leaves.pop("spot", {}), needs)
        if isinstance(template := leaves.get("template"), str) and template.endswith((".yaml", ".yml")):
            leaves["template"] = _read_file(template, folder)
        try:
            return cls.model_validate(leaves)
        except ValidationError as e:
            error = e.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, ("cluster", *error["loc"])))
            raise ValueError(f"{place}: {error['msg'].removeprefix('Value error, ')}") from None

    @property
    def spec(self) -> dict[str, Any]:
        """The RayCluster's, as it is to be made."""
        spec = _spec_of(self.template)
        return {"authOptions": _WITH_TOKEN, **spec}

    @property
    def digest(self) -> str:
        """Equal for clusters that tasks can share."""
        of_cluster = {"spec": self.spec, "queue": self.queue}
        return hashlib.sha256(json.dumps(of_cluster, sort_keys=True).encode()).hexdigest()[:16]


def _read_file(name: str, folder: Path | None) -> str:
    path = (folder or Path()) / name
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"cluster.template: cannot read {path}: {e}") from None


def _spec_of(template: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = template.get("spec")
    if template.get("kind") == "RayJob" and isinstance(spec, Mapping):
        spec = spec.get("rayClusterSpec")
    if not isinstance(spec, Mapping):
        raise ValueError(f"the {template.get('kind')} has no spec of a cluster")
    return spec
