"""How much of its memory's bandwidth a GPU uses, as the card counts it itself (NVML's GPM)."""

from __future__ import annotations

from typing import Any


class GpuBandwidth:
    """Of one card. Those before Hopper do not count it, nor does a part of one (MIG)."""

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml, self._device = nvml, device
        self._last: Any = None
        self._spare: Any = None
        try:
            if nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice:
                self._last, self._spare = self._new_sample(), nvml.nvmlGpmSampleAlloc()
        except (nvml.NVMLError, AttributeError):  # an old driver, or an old pynvml
            self._last = None

    def percent(self) -> float | None:
        """Returns the percent that was used since the last call; None where the card does not say."""
        if self._last is None:
            return None
        nvml = self._nvml
        try:
            nvml.nvmlGpmSampleGet(self._device, self._spare)
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            asked.sample1, asked.sample2 = self._last, self._spare
            asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
            nvml.nvmlGpmMetricsGet(asked)
        except nvml.NVMLError:
            self._last = None
            return None
        self._last, self._spare = self._spare, self._last
        found = asked.metrics[0]
        return None if found.nvmlReturn else float(found.value)

    def _new_sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._device, sample)
        return sample
