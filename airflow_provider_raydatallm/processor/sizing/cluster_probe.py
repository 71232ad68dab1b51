"""What is there, asked of the live cluster before anything is spent; `checks` says what that means."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime.gpus import gpu_memory
from airflow_provider_raydatallm.processor.sizing.checks import Finding, check_sizes
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, EnginePlan
from airflow_provider_raydatallm.processor.sizing.model_config import read_model_config

T = TypeVar("T")

_FOLDER_PREFIXES = ("/", "./", "../", "~")
#: Seconds for a look at the nodes.
_LOOK_SECONDS = 25


def preflight_findings(plan: EnginePlan, rows: int, cluster: ClusterFacts | None) -> list[Finding]:
    """All that is wrong with a request.

    :param rows: that are left to answer.
    :param cluster: None to check what needs none.
    """
    model = read_model_config(plan.model_source, plan.engine_kwargs) if plan.sizes is not None else None
    return check_sizes(plan, rows, model, cluster)


def raise_errors(found: list[Finding]) -> None:
    """:raises SliceError: with all errors among the findings, of the first one's kind."""
    errors = [f for f in found if f.severity == "error"]
    if errors:
        raise SliceError("; ".join(map(str, errors)), kind=errors[0].kind)


def probe_cluster() -> ClusterFacts:
    """What the cluster that this process is connected to has."""
    import ray

    there = ray.cluster_resources()
    nodes: list[dict[str, Any]] = [n for n in ray.nodes() if n["Alive"]]
    memory = []
    by_type: dict[str, float] = {}
    for node in nodes:
        for name in node["Resources"]:
            if name.startswith("accelerator_type:"):
                kind = name.removeprefix("accelerator_type:")
                by_type[kind] = by_type.get(kind, 0) + node["Resources"].get("GPU", 0)
    if there.get("GPU"):
        memory = _on_nodes(gpu_memory, [n for n in nodes if n["Resources"].get("GPU")])
    return ClusterFacts(
        resources=there,
        max_resources=_most_resources(),
        gpus_per_node=int(max((n["Resources"].get("GPU", 0) for n in nodes), default=0)),
        gpu_bytes=min((m for m in memory if m), default=None),
        gpus_by_type=by_type,
    )


def is_folder(model_source: str) -> bool:
    return model_source.startswith(_FOLDER_PREFIXES)


def check_model_folder(model_source: str) -> None:
    """:raises SliceError: when the model is a folder that no node of the cluster has."""
    import ray

    if not is_folder(model_source):
        return
    path = os.path.expanduser(model_source)
    found = [_looks_like_a_model(path)]
    if found[0]:
        found = _on_nodes(lambda: _looks_like_a_model(path), [n for n in ray.nodes() if n["Alive"]])
    if all(found):
        raise SliceError(
            f"model_source {model_source!r} is no model folder on any of the cluster's {len(found)} "
            f"node(s): {found[0]}. Give a folder that every node has, a hub id, or an s3:// address",
            kind="model",
        )


def model_files(model_source: str) -> list[list[tuple[str, int, int]]]:
    """What a model's folder holds, by which one that was replaced in place is known: each file's name, bytes
    and time, here, or where it is not on this node on those that have it. Empty for a hub id."""
    import ray

    path = os.path.expanduser(model_source)
    if not is_folder(model_source):
        return []
    if here := _files(path):
        return [here]
    there = _on_nodes(lambda: _files(path), [n for n in ray.nodes() if n["Alive"]])
    return sorted({tuple(files): files for files in there if files}.values())


def _files(path: str) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(path) as found:
            files = [(f.name, f.stat()) for f in found if f.is_file()]
    except OSError:
        return []
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)


def _looks_like_a_model(path: str) -> str:
    """Why not; empty when it does."""
    if not os.path.isdir(path):
        return "there is no such folder"
    return "" if os.path.isfile(os.path.join(path, "config.json")) else "it holds no config.json"


def _on_nodes(look: Callable[[], T], nodes: list[dict[str, Any]]) -> list[T]:
    """What a function returns on each node; those that do not answer in time are left out."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe: Any = ray.remote(num_cpus=0)(look)
    tasks = [
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], soft=False)).remote()
        for n in nodes
    ]
    done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=_LOOK_SECONDS) if tasks else ([], [])
    return list(ray.get(done))


def _most_resources() -> dict[str, float] | None:
    """What the cluster's autoscaler may grow it to; {} without an autoscaler, None where its bounds are not
    known."""
    from ray._private.state import state
    from ray.experimental.internal_kv import _internal_kv_get

    # Ray Train asks the same; there is no public way. An autoscaler of the second generation reports its
    # bounds.
    bounds = getattr(state, "get_max_resources_from_cluster_config", lambda: None)()
    if bounds is not None:
        return dict(bounds)
    # One of the first generation is known by its status only
    # (ray._private.ray_constants.DEBUG_AUTOSCALING_STATUS). Without an autoscaler Ray writes one too, in
    # which each node is of a type of its own, named after it.
    status = json.loads(_internal_kv_get(b"__autoscaling_status") or b"{}")
    types = (status.get("autoscaler_report") or {}).get("node_type_mapping") or {}
    return None if any(kind != f"node_{node}" for node, kind in types.items()) else {}
