"""How busy a node's GPUs, CPUs and memory are: sampled there, added up in the driver."""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from airflow_provider_raydatallm.contract.report import Utilisation
from airflow_provider_raydatallm.processor.ray_runtime.gpus import _nvml_devices

SAMPLE_SECONDS = 0.5


class GpuSample(NamedTuple):
    """`busy`: percent of the time since the last look in which it computed; memory in bytes."""

    id: str
    busy: int
    memory: int
    memory_total: int


class NodeSample(NamedTuple):
    """A node at one time (epoch seconds). `cpu` and `memory` are percent of what the node has."""

    time: float
    cpu: float
    memory: float
    gpus: tuple[GpuSample, ...]


class NodeSampler:
    """Samples the node it lives on, in a thread of its own, for as long as its process lives."""

    def __init__(self) -> None:
        import ray  # noqa: F401  # brings psutil

        self._psutil = importlib.import_module("psutil")
        self._psutil.cpu_percent()  # counts from here
        self._nvml, self._devices = _nvml_devices()
        self._samples: list[NodeSample] = []
        threading.Thread(target=self._run, name="ray-llm-gauges", daemon=True).start()

    def taken(self) -> list[NodeSample]:
        """Samples since the last call."""
        taken, self._samples = self._samples, []
        return taken

    def _run(self) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            self._samples.append(
                NodeSample(
                    time.time(),
                    self._psutil.cpu_percent(),
                    self._psutil.virtual_memory().percent,
                    tuple(self._look(id, device) for id, device in self._devices.items()),
                )
            )

    def _look(self, id: str, device: Any) -> GpuSample:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
        busy = self._nvml.nvmlDeviceGetUtilizationRates(device).gpu
        return GpuSample(id, int(busy), int(memory.used), int(memory.total))


class NodeUsage:
    """Adds up what nodes said about the time in which rows were answered. Memory does not grow with it."""

    def __init__(self) -> None:
        self._waiting: list[NodeSample] = []
        self._busy: Counter[int] = Counter()  # samples by percent
        self._gpu_memory = 0.0
        self._cpu, self._memory, self._count = 0.0, 0.0, 0

    def add(self, samples: Sequence[NodeSample]) -> None:
        self._waiting += samples

    def count(self, start: float, stop: float, held: Collection[str] = ()) -> None:
        """Take the samples between two epoch seconds; those before are forgotten, those after wait.

        :param held: ids of the GPUs that count; all of the nodes' when it is not known which do.
        """
        for sample in self._waiting:
            if start <= sample.time <= stop:
                self._take(sample, held)
        self._waiting = [s for s in self._waiting if s.time > stop]

    def _take(self, sample: NodeSample, held: Collection[str]) -> None:
        self._count += 1
        self._cpu += sample.cpu
        self._memory = max(self._memory, sample.memory)
        for gpu in (g for g in sample.gpus if not held or g.id in held):
            self._busy[gpu.busy] += 1
            self._gpu_memory = max(self._gpu_memory, 100 * gpu.memory / gpu.memory_total)

    def figures(self) -> Utilisation:
        """Percent; None where there was nothing to see."""
        gpus = self._busy.total()
        return Utilisation(
            gpu_mean=round(sum(p * n for p, n in self._busy.items()) / gpus, 1) if gpus else None,
            gpu_p10=_percentile(self._busy, 0.1) if gpus else None,
            gpu_memory_max=round(self._gpu_memory, 1) if gpus else None,
            cpu_mean=round(self._cpu / self._count, 1) if self._count else None,
            memory_max=round(self._memory, 1) if self._count else None,
        )


def _percentile(counts: Counter[int], share: float) -> float:
    """The smallest value that has so large a share of the samples at it or below."""
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * counts.total():
            break
    return float(value)
