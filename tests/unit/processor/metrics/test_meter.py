from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.report import Balance, Throughput, Utilisation
from airflow_provider_raydatallm.processor.columns import failed_table
from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.metrics.meter import (
    RECENT_SECONDS,
    Meter,
    WriterUpdate,
    _Recent,
    finished_rows,
    inferred_rows,
    summarize_group,
)
from airflow_provider_raydatallm.processor.metrics.node_usage import GpuSample, NodeSample
from airflow_provider_raydatallm.processor.ray_runtime import gpus as gpus_module
from airflow_provider_raydatallm.processor.ray_runtime.gpus import held_gpus
from airflow_provider_raydatallm.processor.request.answer_shape import TRUNCATED_ANSWER


def group(
    rows: int,
    *,
    entered: float,
    finished: float,
    tokens: int | None = 10,
    failed: int = 0,
    cut: int = 0,
    worker: str = "w",
    gpus: str | None = None,
    cached: bool = False,
) -> pa.Table:
    answers = answer_table(
        pa.table({"__unit": [0] * rows, "__offset": range(rows)}),
        input_tokens=[tokens] * rows, output_tokens=[2] * rows,
        engine_seconds=[finished - entered] * rows, finished_at=[finished] * rows, worker=[worker] * rows,
        gpus=[gpus] * rows, cached=[cached] * rows, finish_reason=[tokens and "stop"] * rows,
        cached_tokens=[tokens and 4] * rows,
    )  # fmt: skip
    good = pa.table(
        {
            "__unit": [0] * (rows - failed),
            "__truncated": pa.array([i < cut for i in range(rows - failed)]).cast("int64"),
            "answer": ["a"] * (rows - failed),
        }
    )
    bad = failed_table(answers, [(i, TRUNCATED_ANSWER, "max_tokens cut it") for i in range(failed)])
    return summarize_group(answers, good, bad)


def heard(meter: Meter, *groups: pa.Table, samples: Sequence[NodeSample] = ()) -> None:
    meter.add(WriterUpdate(groups, samples=samples))


def test_rates_are_of_this_run_from_its_first_request_to_its_last_row() -> None:
    meter, now = Meter(100, resumed=40), time.time()
    heard(meter, group(40, entered=now + 3, finished=now + 9, failed=1))
    heard(meter, group(20, entered=now + 1, finished=now + 5))
    found = meter.report_sections()
    assert found["seconds"].inference == 8.0
    assert found["throughput"] == Throughput(
        rows_per_s=7.5, input_tokens_per_s=75.0, output_tokens_per_s=15.0
    )
    assert round(found["seconds"].engine_start) == 1
    assert meter.progress()["rows"] == 100


def test_progress_counts_what_was_resumed_but_rates_do_not() -> None:
    meter, now = Meter(100, resumed=50), time.time()
    heard(meter, group(10, entered=now - 10, finished=now))
    said = meter.progress()
    assert (said["rows"], said["planned"]) == (60, 100)
    assert 0.9 < said["rows_per_s"] <= 1.0
    assert 39 < said["eta_s"] < 45


def test_progress_tells_what_the_report_will() -> None:
    meter, now = Meter(100, resumed=0), time.time()
    known = {name: value for name, value in meter.progress().items() if value}
    assert known | {"elapsed_s": 0} == {"planned": 100, "elapsed_s": 0}
    heard(meter, group(10, entered=now - 10, finished=now - 4, cut=2, failed=1, worker="a"))
    heard(meter, group(10, entered=now - 5, finished=now, worker="b"))
    said, found = meter.progress(), meter.report_sections()
    assert (said["input_tokens"], said["output_tokens"], said["cached_tokens"]) == (200, 40, 80)
    assert said["truncated"] == 3  # one of them was no answer for it
    assert (said["workers"], said["busy"], said["least_busy"]) == (2, 0.55, 0.5)
    assert said["first_row_s"] == pytest.approx(said["engine_start_s"] + 6, abs=0.01)
    assert said["engine_start_s"] == found["seconds"].engine_start


def test_rows_that_were_kept_are_not_inferred() -> None:
    kept = group(5, entered=1.0, finished=2.0, cached=True)
    inferred = [group(3, entered=1.0, finished=2.0, failed=1), group(2, entered=1.0, finished=2.0)]
    assert (
        finished_rows(WriterUpdate([kept, *inferred])),
        inferred_rows(WriterUpdate([kept, *inferred])),
    ) == (10, 5)
    assert (
        finished_rows(WriterUpdate([kept])),
        inferred_rows(WriterUpdate([kept])),
        inferred_rows(WriterUpdate()),
    ) == (5, 0, 0)


def test_recent_rates_are_of_the_last_minutes() -> None:
    recent = _Recent()
    assert recent.rates() == (None, None)
    for second in range(1, 1001):
        # From 600 s on a tenth as fast.
        recent.add(0.0, float(second), rows=min(second, 600) * 10 + max(second - 600, 0), tokens=second)
        if second == 300:
            assert recent.rates() == (10.0, 1.0)
    assert recent.rates() == (1.0, 1.0)
    assert len(recent._marks) <= RECENT_SECONDS + 1
    recent.add(0.0, 2000.0, rows=16_400, tokens=2000)  # nothing was heard for longer than that
    assert recent.rates() == (10.0, 1.0)


def test_what_is_not_measured_is_null() -> None:
    assert Meter(3, 3).report_sections()["seconds"].inference is None
    meter = Meter(1, 0)
    heard(meter, group(1, entered=1.0, finished=2.0, tokens=None))
    assert meter.report_sections()["throughput"].input_tokens_per_s is None
    said = meter.progress()
    assert said["input_tokens"] is said["cached_tokens"] is said["truncated"] is said["gpu_mean"] is None


def test_summary_tells_the_answers_columns() -> None:
    [schema] = group(1, entered=1.0, finished=2.0).column("schema").to_pylist()
    assert pa.ipc.read_schema(pa.BufferReader(schema)).names == ["answer"]
    assert group(1, entered=1.0, finished=2.0, failed=1).column("schema").to_pylist() == [None]


def test_balance_is_of_the_time_in_which_a_worker_had_a_request() -> None:
    meter = Meter(40, 0)
    heard(
        meter,
        group(10, entered=0.5, finished=4.5, worker="a"),
        group(10, entered=1.0, finished=8.5, worker="a"),
    )
    heard(
        meter,
        group(10, entered=0.5, finished=2.5, worker="b"),
        group(10, entered=6.5, finished=8.5, worker="b"),
    )
    assert meter.report_sections()["balance"] == Balance(workers=2, max_over_mean=1.333)  # 8 s and 4 s


def test_tokens_are_told_per_gpu_where_the_gpus_are_known() -> None:
    meter = Meter(10, 0)
    heard(meter, group(10, entered=1.0, finished=6.0))
    assert (
        meter.report_sections(lambda workers: 2.0 * (workers or 0))["throughput"].tokens_per_s_per_gpu == 12.0
    )
    assert meter.report_sections(lambda workers: None)["throughput"].tokens_per_s_per_gpu is None


def test_utilisation_is_of_the_time_in_which_rows_were_answered() -> None:
    def sample(at: float, busy: int, cpu: float = 50.0) -> NodeSample:
        return NodeSample(at, cpu, 40.0, (GpuSample("g0", busy, 60, 80), GpuSample("g1", 100, 8, 80)))

    meter = Meter(100, 0)
    samples = [sample(float(t), busy=0 if t < 10 else 90) for t in range(5, 30)]
    heard(meter, samples=samples)
    heard(meter, group(10, entered=10.0, finished=12.0))
    heard(meter, group(10, entered=12.0, finished=19.0), samples=[sample(19.0, busy=10, cpu=100.0)])
    found = meter.report_sections()["utilisation"]
    assert found == Utilisation(
        gpu_mean=91.4, gpu_p10=90.0, gpu_memory_max=75.0, cpu_mean=54.5, memory_max=40.0
    )
    assert Meter(1, 0).report_sections()["utilisation"] == Utilisation()


def test_gpus_that_other_jobs_hold_do_not_count() -> None:
    def sample(at: float, node: str) -> NodeSample:
        return NodeSample(
            at, 50.0, 40.0, (GpuSample(f"{node}-0", 80, 40, 80), GpuSample(f"{node}-1", 0, 80, 80))
        )

    meter = Meter(100, 0)
    heard(meter, samples=[sample(t, node) for t in (11.0, 12.0) for node in ("a", "b", "c")])
    heard(meter, group(10, entered=10.0, finished=20.0, gpus="a-0"), group(10, entered=11.0, finished=19.0))
    assert meter.report_sections()["utilisation"].model_dump(include={"gpu_mean", "gpu_memory_max"}) == {
        "gpu_mean": 80.0, "gpu_memory_max": 50.0,
    }  # fmt: skip
    # A worker may hold several, and others more.
    heard(meter, samples=[sample(t, node) for t in (21.0, 22.0) for node in ("a", "b", "c")])
    heard(meter, group(10, entered=20.0, finished=30.0, gpus="b-0,b-1", worker="v"))
    assert (
        meter.report_sections()["utilisation"].gpu_mean == 60.0
    )  # 4 samples of 80 of a-0, 2 of 80 and 2 of 0 of b


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
    ("given", "held"),
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
    monkeypatch: pytest.MonkeyPatch, given: list[Any], held: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    monkeypatch.setattr("ray.get_gpu_ids", lambda: given)
    assert held_gpus.__wrapped__() == held


def test_worker_without_gpus_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus_module, "_nvml_devices", lambda: (None, {}))
    assert held_gpus.__wrapped__() is None
