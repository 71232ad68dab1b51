"""The RayCluster of a task that gives an image only: nodes with the GPUs that its engine asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engines import KINDS
from airflow_provider_raydatallm.contract.spec.engines.base import ClusterEngine, Workers
from airflow_provider_raydatallm.contract.spec.parallel import read_parallel

_WORKERS: TypeAdapter[Workers] = TypeAdapter(Workers)
#: In the tags of Ray's own images, and of most that are made from them.
_RAY_VERSION = re.compile(r":(?:.*?[^\d.])?(\d+\.\d+\.\d+)")
#: Of each GPU's node, which the smallest nodes with one have left.
_CPUS, _MEMORY_GIB = 3, 12
_SHARED_MEMORY = "8Gi"


@dataclass(frozen=True)
class GpuNeeds:
    """What an engine's workers ask for.

    :param nodes: how many at least and at most.
    :param gpus: of each node.
    """

    nodes: tuple[int, int] = (1, 1)
    gpus: int = 1


def gpu_needs(engine: Mapping[str, Any]) -> GpuNeeds:
    """
    :param engine: leaves of the group, with those of its profile.
    :raises ValueError: naming the leaf that cannot work.
    """
    if not issubclass(KINDS.get(str(engine.get("kind")), ClusterEngine), ClusterEngine):
        return GpuNeeds((0, 0), 0)
    try:
        parallel = read_parallel(engine.get("kwargs") or {})
        workers = _WORKERS.validate_python(engine.get("workers", 1))
    except SliceError as e:
        raise ValueError(e.failure.sentence) from None
    if workers == "auto":
        workers = 1
    bounds = (workers, workers) if isinstance(workers, int) else workers
    nodes = parallel.gpus // parallel.gpus_on_one_node
    return GpuNeeds((bounds[0] * nodes, bounds[1] * nodes), parallel.gpus_on_one_node)


def derive_template(image: Any, node_selector: Any, spot: Any, needs: GpuNeeds) -> dict[str, Any]:
    """Returns a head without GPUs, and nodes that come and go between their bounds.

    :param image: of all pods.
    :param node_selector: labels of Kubernetes' nodes that have the GPUs.
    :param spot: further labels of those that may be reclaimed, if any: they have all workers, or those beyond
        the fewest where these have bounds.
    :raises ValueError: naming the leaf that cannot work.
    """
    if not isinstance(image, str) or (version := _RAY_VERSION.search(image)) is None:
        raise ValueError(
            f"cluster.image is {image!r}, which tells no version of Ray: give one such as "
            "'rayproject/ray-llm:2.60.0-py311-cu128', or a template"
        )
    for leaf, labels in (("node_selector", node_selector), ("spot", spot)):
        if not isinstance(labels, Mapping) or not all(isinstance(v, str) for v in labels.values()):
            raise ValueError(f"cluster.{leaf} is {labels!r}: give a dict of labels and their values")
    fewest, most = needs.nodes
    if not spot:
        groups = [_group("gpu", fewest, most, image, node_selector, needs.gpus)]
    elif fewest == most:
        groups = [_group("spot", fewest, most, image, {**node_selector, **spot}, needs.gpus)]
    else:
        groups = [
            _group("gpu", fewest, fewest, image, node_selector, needs.gpus),
            _group("spot", 0, most - fewest, image, {**node_selector, **spot}, needs.gpus),
        ]
    head = {"cpu": "4", "memory": "16Gi"}
    container = {
        "name": "ray-head",
        "image": image,
        "resources": {"requests": head, "limits": {"memory": "16Gi"}},
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "spec": {
            "rayVersion": version[1],
            **({"enableInTreeAutoscaling": True} if fewest < most else {}),
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "8"},  # the slice's own processes; no engine runs there
                "template": {"spec": {"containers": [container]}},
            },
            "workerGroupSpecs": groups if most else [],
        },
    }


def _group(
    name: str, fewest: int, most: int, image: str, labels: Mapping[str, str], gpus: int
) -> dict[str, Any]:
    """:param labels: of Kubernetes' nodes; taints of the same names are tolerated, as spot nodes may have."""
    limits = {"nvidia.com/gpu": str(gpus)}
    requests = {"cpu": str(_CPUS * gpus), "memory": f"{_MEMORY_GIB * gpus}Gi", **limits}
    tolerated = ["nvidia.com/gpu", *labels]
    return {
        "groupName": name,
        "replicas": fewest, "minReplicas": fewest, "maxReplicas": most,
        # Less than the shared memory: else Ray keeps its objects on the disk.
        "rayStartParams": {"object-store-memory": "4000000000"},
        "template": {
            "spec": {
                "nodeSelector": dict(labels),
                "tolerations": [
                    {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerated
                ],
                "containers": [
                    {
                        "name": "ray-worker", "image": image,
                        "resources": {"requests": requests, "limits": limits},
                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    }
                ],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}}],
            }
        },
    }  # fmt: skip
