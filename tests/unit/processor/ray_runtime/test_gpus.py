from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.ray_runtime import gpus

NVML = SimpleNamespace(  # three GPUs
    NVMLError=OSError,
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 3,
    nvmlDeviceGetHandleByIndex=lambda number: number,
    nvmlDeviceGetUUID=lambda device: f"GPU-{'abc'[device]}".encode(),
)


@pytest.mark.parametrize(
    ("assigned", "held"),
    [
        ([1], "GPU-b"),
        (["0", "2"], "GPU-a,GPU-c"),
        (["GPU-c"], "GPU-c"),  # by a node whose environment names ids
        (["MIG-d"], None),
        ([7], None),
        ([], None),
    ],
)
def test_worker_knows_the_gpus_that_it_holds(
    monkeypatch: pytest.MonkeyPatch, assigned: list[Any], held: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVML)
    monkeypatch.setattr("ray.get_gpu_ids", lambda: assigned)
    assert gpus.held_gpus.__wrapped__() == held


def test_worker_without_gpus_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "nvml_devices", lambda: (None, {}))
    assert gpus.held_gpus.__wrapped__() is None
