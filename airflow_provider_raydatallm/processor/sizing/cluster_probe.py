"""Reads facts from the live cluster before a run starts; `checks` judges them."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import RAY
from airflow_provider_raydatallm.processor.ray_runtime.gpus import gpu_memory
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts

T = TypeVar("T")

_FOLDER_PREFIXES = ("/", "./", "../", "~")
#: Seconds for a call on all nodes.
_PROBE_TIMEOUT_S = 25


def probe_cluster() -> ClusterFacts:
    """Reads the resources of the connected cluster."""
    import ray

    nodes = _alive_nodes()
    gpu_nodes = [node for node in nodes if node["Resources"].get("GPU")]
    gpus_by_type: defaultdict[str, float] = defaultdict(float)
    for resources in (node["Resources"] for node in gpu_nodes):
        for name in resources:
            if name.startswith("accelerator_type:"):
                gpus_by_type[name.removeprefix("accelerator_type:")] += resources["GPU"]
    return ClusterFacts(
        resources=ray.cluster_resources(),
        max_resources=_max_resources(),
        gpus_per_node=int(max((node["Resources"]["GPU"] for node in gpu_nodes), default=0)),
        gpu_bytes=min((size for size in _call_on(gpu_memory, gpu_nodes) if size), default=None),
        node_memory=max((node["Resources"].get("memory", 0) for node in nodes), default=0),
        gpus_by_type=gpus_by_type,
    )


def is_folder(model_source: str) -> bool:
    return model_source.startswith(_FOLDER_PREFIXES)


def check_model_folder(model_source: str) -> None:
    """:raises SliceError: when the model is a folder that no node of the cluster has; of kind `transient`
    when no node answered."""
    if not is_folder(model_source):
        return
    path = os.path.expanduser(model_source)
    if not _folder_fault(path):
        return
    faults = _call_on(lambda: _folder_fault(path), _alive_nodes())
    if not faults:
        raise SliceError(
            f"cannot check model_source {model_source!r}: no node of the cluster answered within "
            f"{_PROBE_TIMEOUT_S} s",
            kind="transient",
            advice="Retry when the cluster is less busy",
        )
    if all(faults):
        raise SliceError(
            f"model_source {model_source!r} is not a model folder on any of the cluster's {len(faults)} "
            f"node(s): {faults[0]}",
            kind="model",
            advice="Set it to a folder that every node has, a hub id, or an s3:// address",
        )


def model_files(model_source: str) -> list[list[tuple[str, int, int]]]:
    """Lists a model folder's files as (name, bytes, mtime_ns), which detects a model that was replaced in
    place: of this node, or else each distinct list of the other nodes. Empty for a hub id."""
    path = os.path.expanduser(model_source)
    if not is_folder(model_source):
        return []
    if files := _list_files(path):
        return [files]
    lists = _call_on(lambda: _list_files(path), _alive_nodes())
    return sorted({tuple(files): files for files in lists if files}.values())


def _list_files(path: str) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(path) as entries:
            files = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    except OSError:
        return []
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)


def _folder_fault(path: str) -> str:
    """Returns why a folder is not a model's; "" if it is."""
    if not os.path.isdir(path):
        return "the folder does not exist"
    return "" if os.path.isfile(os.path.join(path, "config.json")) else "it has no config.json"


def _alive_nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _call_on(function: Callable[[], T], nodes: list[dict[str, Any]]) -> list[T]:
    """Returns a function's result on each node, without nodes that do not answer in time."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe: Any = ray.remote(num_cpus=0)(function)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    tasks = [probe.options(scheduling_strategy=place).remote() for place in places]
    done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=_PROBE_TIMEOUT_S) if tasks else ([], [])
    return ray.get(done, timeout=_PROBE_TIMEOUT_S) if done else []


def _max_resources() -> dict[str, float] | None:
    """Returns the autoscaler's upper bounds; {} without an autoscaler, None when they are unknown."""
    from ray._private.state import state

    # Autoscaler v2 reports its bounds. There is no public API; Ray Train calls this too.
    bounds = state.get_max_resources_from_cluster_config()
    if bounds is not None:
        return dict(bounds)
    # Autoscaler v1 shows in its status only (ray._private.ray_constants.DEBUG_AUTOSCALING_STATUS). Without an
    # autoscaler there is a status too, in which each node has its own type, named after the node.
    status = json.loads(RAY.get("__autoscaling_status") or "{}")
    types = (status.get("autoscaler_report") or {}).get("node_type_mapping") or {}
    return None if any(kind != f"node_{node}" for node, kind in types.items()) else {}
