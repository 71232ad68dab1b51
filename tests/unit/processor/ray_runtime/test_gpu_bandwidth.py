"""What a card says of its memory's bandwidth, by an NVML that counts as one; a card that says nothing."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.ray_runtime.gpu_bandwidth import GpuBandwidth

REAL = importlib.import_module("ray._private.thirdparty.pynvml")


class Card:
    """NVML's functions for one card, whose memory moves `moved` more at each sample; structures are real."""

    NVMLError = REAL.NVMLError
    NVML_GPM_METRICS_GET_VERSION = REAL.NVML_GPM_METRICS_GET_VERSION
    NVML_GPM_METRIC_DRAM_BW_UTIL = REAL.NVML_GPM_METRIC_DRAM_BW_UTIL

    def __init__(self, *moved: float, is_supported: bool = True, error_at: int | None = None) -> None:
        self._moved = list(moved)
        self._is_supported = is_supported
        self._error_at = error_at
        self._samples = 0

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)])

    def nvmlGpmQueryDeviceSupport(self, device: Any) -> Any:
        return SimpleNamespace(isSupportedDevice=self._is_supported)

    def nvmlGpmSampleAlloc(self) -> Any:
        return SimpleNamespace(at=None)

    def nvmlGpmSampleGet(self, device: Any, sample: Any) -> None:
        self._samples += 1
        if self._samples == self._error_at:
            raise REAL.NVMLError(REAL.NVML_ERROR_GPU_IS_LOST)
        sample.at = sum(self._moved[: self._samples])

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        assert asked.version == self.NVML_GPM_METRICS_GET_VERSION
        assert asked.metrics[0].metricId == self.NVML_GPM_METRIC_DRAM_BW_UTIL
        asked.metrics[0].value = asked.sample2.at - asked.sample1.at


def test_each_call_tells_what_was_used_since_the_last_one() -> None:
    bandwidth = GpuBandwidth(Card(0, 40, 70, 10), "card")
    assert [bandwidth.percent() for _ in range(3)] == [40, 70, 10]


@pytest.mark.parametrize(
    "card",
    [Card(0, 40, is_supported=False), Card(0, 40, error_at=1), SimpleNamespace(NVMLError=REAL.NVMLError)],
)
def test_card_or_driver_that_does_not_count_it_says_nothing(card: Any) -> None:
    assert GpuBandwidth(card, "card").percent() is None


def test_card_that_is_lost_ends_the_figures_and_nothing_else() -> None:
    bandwidth = GpuBandwidth(Card(0, 40, 70, error_at=3), "card")
    assert [bandwidth.percent() for _ in range(3)] == [40, None, None]


def test_structures_of_the_library_have_the_fields_that_are_set() -> None:
    asked = REAL.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = REAL.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1 = asked.sample2 = REAL.c_nvmlGpmSample_t()
    asked.metrics[0].metricId = REAL.NVML_GPM_METRIC_DRAM_BW_UTIL
    assert asked.metrics[0].value == asked.metrics[0].nvmlReturn == 0
