"""gpus."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU of this node; None where none can be seen."""
    nvml, devices = _nvml_devices()
    return min((int(nvml.nvmlDeviceGetMemoryInfo(d).total) for d in devices.values()), default=None)


@cache
def held_gpus() -> str | None:
    """Ids of the GPUs that Ray gave to this actor, with commas; None where there are none, or they are not
    known: a part of a GPU has an id of its own."""
    import ray

    _, devices = _nvml_devices()
    if not devices:
        return None
    given, numbered = [str(g) for g in ray.get_gpu_ids()], list(devices)
    held = [numbered[int(g)] if g.isdecimal() and int(g) < len(numbered) else g for g in given]
    return ",".join(held) if held and devices.keys() >= set(held) else None


def _nvml_devices() -> tuple[Any, dict[str, Any]]:
    """NVIDIA's management library and the devices it sees by id, in the order of their numbers; none where
    there is no such thing."""
    for name in ("pynvml", "ray._private.thirdparty.pynvml"):
        try:
            nvml = importlib.import_module(name)
        except ImportError:
            continue
        try:
            nvml.nvmlInit()
            found = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            return nvml, {_text(nvml.nvmlDeviceGetUUID(d)): d for d in found}
        except nvml.NVMLError:
            return nvml, {}
    return None, {}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
