"""Checks against the live cluster before anything is spent. An impossible request would otherwise wait for
ever, silently."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow_provider_raydatallm.processor.engines.base import Resources
from airflow_provider_raydatallm.processor.errors import SliceError

_FOLDER_PREFIXES = ("/", "./", "../", "~")


def check_resources(needs: Resources, accelerator_type: str | None) -> None:
    """:raises SliceError: when the cluster lacks CPUs or GPUs and no autoscaler can bring them."""
    import ray

    there = ray.cluster_resources()
    most = _most_resources()
    if most is None:
        return
    short = [
        f"{need:g} {name}s where the cluster has {there.get(name, 0):g}"
        + (f" and may grow to {most[name]:g}" if most.get(name, 0) > there.get(name, 0) else "")
        for name, need in (("CPU", needs.cpus), ("GPU", needs.gpus))
        if max(there.get(name, 0), most.get(name, 0)) < need
    ]
    kinds = sorted(
        k.removeprefix("accelerator_type:") for k in {*there, *most} if k.startswith("accelerator_type:")
    )
    if accelerator_type is not None and accelerator_type not in kinds:
        short.append(f"a {accelerator_type} where the cluster has {', '.join(kinds) or 'no accelerator'}")
    if short:
        raise SliceError(
            f"the cluster is too small: the slice needs {' and '.join(short)} ({needs.breakdown}). "
            "Add nodes, or lower concurrency or the parallel sizes in engine_kwargs",
            kind="cluster",
        )


def check_model(model_source: str) -> None:
    """:raises SliceError: when the model is a folder that no node of the cluster has."""
    if not model_source.startswith(_FOLDER_PREFIXES):
        return
    path = os.path.expanduser(model_source)
    found = [_looks_like_a_model(path)]
    if not any(ok for ok, _ in found):
        found = _on_every_node(path)
    if not any(ok for ok, _ in found):
        raise SliceError(
            f"model_source {model_source!r} is no model folder on any of the cluster's {len(found)} "
            f"node(s): {found[0][1]}. Give a folder that every node has, a hub id, or an s3:// address",
            kind="model",
        )


def _looks_like_a_model(path: str) -> tuple[bool, str]:
    if not os.path.isdir(path):
        return False, "there is no such folder"
    if not os.path.isfile(os.path.join(path, "config.json")):
        return False, "it holds no config.json"
    return True, ""


def _on_every_node(path: str) -> list[tuple[bool, str]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0)(_looks_like_a_model)
    nodes: list[dict[str, Any]] = [n for n in ray.nodes() if n["Alive"]]
    tasks = [
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], soft=False)).remote(
            path
        )
        for n in nodes
    ]
    return [tuple(r) for r in ray.get(tasks, timeout=120)]


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
