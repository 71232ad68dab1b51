"""GPUs of this node, as NVML and Ray number them."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


def gpu_memory() -> int | None:
    """Returns bytes of this node's smallest GPU; None without a visible GPU."""
    nvml, devices = nvml_devices()
    return min((int(nvml.nvmlDeviceGetMemoryInfo(d).total) for d in devices.values()), default=None)


@cache
def held_gpus() -> str | None:
    """Returns the comma-separated ids of the GPUs that Ray assigned to this actor; None when there are none
    or NVML does not list them: a part of a GPU (MIG) has its own id."""
    import ray

    _, devices = nvml_devices()
    if not devices:
        return None
    assigned, ids = [str(g) for g in ray.get_gpu_ids()], list(devices)
    held = [ids[int(g)] if g.isdecimal() and int(g) < len(ids) else g for g in assigned]
    return ",".join(held) if held and devices.keys() >= set(held) else None


def nvml_devices() -> tuple[Any, dict[str, Any]]:
    """Returns NVIDIA's management library and its devices by id, in the order of their numbers; (None, {})
    without the library."""
    for name in ("pynvml", "ray._private.thirdparty.pynvml"):
        try:
            nvml = importlib.import_module(name)
        except ImportError:
            continue
        try:
            nvml.nvmlInit()
            devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            return nvml, {_text(nvml.nvmlDeviceGetUUID(d)): d for d in devices}
        except nvml.NVMLError:
            return nvml, {}
    return None, {}


def device_name(nvml: Any, device: Any) -> str:
    """Returns what NVML calls the card, such as "NVIDIA H100 80GB HBM3"."""
    return _text(nvml.nvmlDeviceGetName(device))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
