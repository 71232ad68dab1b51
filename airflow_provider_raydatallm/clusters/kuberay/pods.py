"""What a pod of a cluster says of the GPUs that it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_raydatallm.contract.result.gpus_held import HeldNode


def held_node(pod: Mapping[str, Any]) -> HeldNode | None:
    """Returns None for a pod that holds none: not yet, or no more."""
    gpus = sum(_gpus(container) for container in pod["spec"]["containers"])
    status = pod.get("status") or {}
    scheduled = next(
        (
            condition["lastTransitionTime"]
            for condition in status.get("conditions") or ()
            if condition["type"] == "PodScheduled" and condition["status"] == "True"
        ),
        None,
    )
    if not gpus or scheduled is None or status.get("phase") in ("Failed", "Succeeded"):
        return None
    # Init containers wait for the head, and have the same image.
    of_containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [one.get(which) or {} for one in of_containers for which in ("state", "lastState")]
    started = [at for state in states if (at := _started(state)) is not None]
    return HeldNode(gpus, _seconds(scheduled), min(started, default=None))


def _gpus(container: Mapping[str, Any]) -> float:
    """Of whatever maker, whole or shared: nvidia.com/gpu, amd.com/gpu, nvidia.com/mig-3g.40gb."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return sum(float(count) for name, count in limits.items() if re.search(r"/(gpu|mig-)", name))


def _started(state: Mapping[str, Any]) -> float | None:
    for of in ("running", "terminated"):
        if at := (state.get(of) or {}).get("startedAt"):
            return _seconds(at)
    return None


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
