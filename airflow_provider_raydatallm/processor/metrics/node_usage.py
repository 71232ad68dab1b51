"""Usage of GPUs, CPUs and memory: sampled on each node, aggregated in the driver."""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from airflow_provider_raydatallm.contract.result.report import Utilisation
from airflow_provider_raydatallm.processor.metrics.history import RunHistory
from airflow_provider_raydatallm.processor.ray_runtime.gpu_bandwidth import GpuBandwidth
from airflow_provider_raydatallm.processor.ray_runtime.gpus import device_name, nvml_devices

SAMPLE_SECONDS = 0.5


class GpuSample(NamedTuple):
    """`busy`: percent of the time since the last sample in which the GPU computed; memory in bytes; `name`:
    what NVML calls the card; `bandwidth`: percent of its memory's bandwidth since the last sample."""

    id: str
    busy: int
    memory: int
    memory_total: int
    name: str | None = None
    bandwidth: float | None = None


class NodeSample(NamedTuple):
    """A node at one time (epoch seconds); `cpu` and `memory` are percent of the node's total."""

    time: float
    cpu: float
    memory: float
    gpus: tuple[GpuSample, ...]


class NodeSampler:
    """Samples its node in a thread, for as long as its process lives."""

    def __init__(self) -> None:
        import ray  # noqa: F401  # brings psutil

        self._psutil = importlib.import_module("psutil")
        self._psutil.cpu_percent()  # starts its measurement
        self._nvml, self._devices = nvml_devices()
        self._bandwidths = {id: GpuBandwidth(self._nvml, d) for id, d in self._devices.items()}
        self._samples: list[NodeSample] = []
        threading.Thread(target=self._run, name="ray-llm-gauges", daemon=True).start()

    def new_samples(self) -> list[NodeSample]:
        """Returns the samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    def _run(self) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            cpu, memory = self._psutil.cpu_percent(), self._psutil.virtual_memory().percent
            gpus = tuple(self._sample_gpu(id, device) for id, device in self._devices.items())
            self._samples.append(NodeSample(time.time(), cpu, memory, gpus))

    def _sample_gpu(self, id: str, device: Any) -> GpuSample:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
        busy = self._nvml.nvmlDeviceGetUtilizationRates(device).gpu
        name, bandwidth = device_name(self._nvml, device), self._bandwidths[id].percent()
        return GpuSample(id, int(busy), int(memory.used), int(memory.total), name, bandwidth)


class NodeUsage:
    """Aggregates the samples of the time of inference, in constant memory.

    :param history: gets them, too.
    """

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self._pending: list[NodeSample] = []
        self._gpu_busy: Counter[int] = Counter()  # GPU samples by percent
        self._gpu_memory_max = 0.0
        self._bandwidth_sum, self._bandwidths = 0.0, 0
        self._cpu_sum, self._memory_max, self._samples = 0.0, 0.0, 0
        #: By id, of GPUs that count.
        self.gpu_names: dict[str, str] = {}

    def add(self, samples: Sequence[NodeSample]) -> None:
        self._pending += samples

    def count_between(self, start: float, stop: float, gpu_ids: Collection[str] = ()) -> None:
        """Counts the samples between two epoch seconds, drops earlier ones and keeps later ones pending.

        :param gpu_ids: the GPUs that count; all GPUs of the nodes when empty.
        """
        for sample in self._pending:
            if start <= sample.time <= stop:
                self._count(sample, gpu_ids)
        self._pending = [s for s in self._pending if s.time > stop]

    def _count(self, sample: NodeSample, gpu_ids: Collection[str]) -> None:
        self._samples += 1
        self._cpu_sum += sample.cpu
        self._memory_max = max(self._memory_max, sample.memory)
        gpus = [gpu for gpu in sample.gpus if not gpu_ids or gpu.id in gpu_ids]
        self._history.add_sample(sample.time, sample.cpu, (gpu.busy for gpu in gpus))
        for gpu in gpus:
            self._gpu_busy[gpu.busy] += 1
            if gpu.bandwidth is not None:
                self._bandwidth_sum += gpu.bandwidth
                self._bandwidths += 1
            if gpu.name is not None:
                self.gpu_names[gpu.id] = gpu.name
            self._gpu_memory_max = max(self._gpu_memory_max, 100 * gpu.memory / gpu.memory_total)

    def utilisation(self) -> Utilisation:
        """Returns percentages; None where there was no sample."""
        gpu_samples = self._gpu_busy.total()
        busy = sum(percent * count for percent, count in self._gpu_busy.items())
        return Utilisation(
            gpu_mean=round(busy / gpu_samples, 1) if gpu_samples else None,
            gpu_p10=_percentile(self._gpu_busy, 0.1) if gpu_samples else None,
            gpu_memory_max=round(self._gpu_memory_max, 1) if gpu_samples else None,
            bandwidth_share=round(self._bandwidth_sum / self._bandwidths, 1) if self._bandwidths else None,
            cpu_mean=round(self._cpu_sum / self._samples, 1) if self._samples else None,
            memory_max=round(self._memory_max, 1) if self._samples else None,
        )


def _percentile(counts: Counter[int], share: float) -> float:
    """Returns the smallest value with at least this share of the samples at or below it."""
    below = 0
    for value in sorted(counts):
        below += counts[value]
        if below >= share * counts.total():
            break
    return float(value)
