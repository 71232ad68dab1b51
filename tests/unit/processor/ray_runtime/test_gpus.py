from __future__ import annotations

import sys
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.ray_runtime import gpus


class Nvml:
    """Of the library, three GPUs in the order of their numbers."""

    NVMLError = OSError

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUUID(self, device: int) -> bytes:
        return f"GPU-{'abc'[device]}".encode()


@pytest.mark.parametrize(
    ("assigned", "held"),
    [
        ([1], "GPU-b"),
        (["0", "2"], "GPU-a,GPU-c"),
        (["GPU-c"], "GPU-c"),  # as a node numbers them whose own environment does
        (["MIG-d"], None),
        ([7], None),
        ([], None),
    ],
)
def test_worker_knows_the_gpus_that_it_holds(
    monkeypatch: pytest.MonkeyPatch, assigned: list[Any], held: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    monkeypatch.setattr("ray.get_gpu_ids", lambda: assigned)
    assert gpus.held_gpus.__wrapped__() == held


def test_worker_without_gpus_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "nvml_devices", lambda: (None, {}))
    assert gpus.held_gpus.__wrapped__() is None
