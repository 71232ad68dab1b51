from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.report import Balance, Throughput, Utilisation
from airflow_provider_raydatallm.contract.result.row_errors import TRUNCATED_ANSWER
from airflow_provider_raydatallm.processor.columns import failed_table
from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.metrics.meter import (
    RECENT_SECONDS,
    Meter,
    RecentRates,
    Totals,
    WriterUpdate,
    summarize_group,
)
from airflow_provider_raydatallm.processor.metrics.node_usage import GpuSample, NodeSample
from airflow_provider_raydatallm.processor.sizing.model_work import ModelWork


def group(
    rows: int, *, entered: float, finished: float, tokens: int | None = 10, failed: int = 0, cut: int = 0,
    worker: str = "w", gpus: str | None = None, cached: bool = False,
) -> pa.Table:  # fmt: skip
    answers = answer_table(
        pa.table({"__unit": [0] * rows, "__offset": range(rows)}),
        input_tokens=[tokens] * rows, output_tokens=[2] * rows,
        engine_seconds=[finished - entered] * rows, finished_at=[finished] * rows, worker=[worker] * rows,
        gpus=[gpus] * rows, cached=[cached] * rows, finish_reason=[tokens and "stop"] * rows,
        cached_tokens=[tokens and 4] * rows,
    )  # fmt: skip
    truncated = pa.array([tokens and i < cut for i in range(rows - failed)], pa.bool_()).cast("int64")
    good = pa.table({
        "__truncated": truncated, "__degenerate": truncated, "answer": ["a"] * (rows - failed),
    })  # fmt: skip
    bad = failed_table(answers, [(i, TRUNCATED_ANSWER, "max_tokens cut it") for i in range(failed)])
    return summarize_group(answers, good, bad)


def add(meter: Meter, *groups: pa.Table, samples: Sequence[NodeSample] = ()) -> None:
    meter.add(WriterUpdate(groups, samples=samples))


def test_rates_are_of_this_run_from_its_first_request_to_its_last_row() -> None:
    meter, now = Meter(100, resumed_rows=40), time.time()
    add(meter, group(40, entered=now + 3, finished=now + 9, failed=1))
    add(meter, group(20, entered=now + 1, finished=now + 5))
    sections = meter.report_sections()
    assert sections["seconds"].inference == 8.0
    rates = Throughput(rows_per_s=7.5, input_tokens_per_s=75.0, output_tokens_per_s=15.0)
    assert sections["throughput"] == rates
    assert round(sections["seconds"].engine_start) == 1
    assert meter.progress()["rows"] == 100


def test_progress_counts_what_was_resumed_but_rates_do_not() -> None:
    meter, now = Meter(100, resumed_rows=50), time.time()
    add(meter, group(5, entered=now - 50, finished=now - 40), group(5, entered=now - 10, finished=now))
    progress = meter.progress()
    assert (progress["rows"], progress["planned"]) == (60, 100)
    assert 0.19 < progress["rows_per_s"] <= 0.2
    assert 199 < progress["eta_s"] < 210


@pytest.mark.parametrize(
    ("first_row_s_ago", "first_row_took_s", "is_known"), [(29, 1, False), (31, 1, True), (40, 50, False)]
)
def test_time_left_is_unknown_while_the_engine_fills(
    first_row_s_ago: float, first_row_took_s: float, is_known: bool
) -> None:
    meter, finished = Meter(64_000, resumed_rows=0), time.time() - first_row_s_ago
    add(meter, group(1, entered=finished - first_row_took_s, finished=finished))
    assert (meter.progress()["eta_s"] is not None) is is_known


def test_progress_agrees_with_the_report() -> None:
    meter, now = Meter(100, resumed_rows=0), time.time()
    known = {name: value for name, value in meter.progress().items() if value}
    assert known | {"elapsed_s": 0} == {"planned": 100, "elapsed_s": 0}
    add(meter, group(10, entered=now - 10, finished=now - 4, cut=2, failed=1, worker="a"))
    add(meter, group(10, entered=now - 5, finished=now, worker="b"))
    progress, sections = meter.progress(), meter.report_sections()
    assert (progress["input_tokens"], progress["output_tokens"], progress["cached_tokens"]) == (200, 40, 80)
    assert progress["truncated"] == 3  # one of them failed for it
    assert (progress["workers"], progress["busy"], progress["least_busy"]) == (2, 0.55, 0.5)
    assert progress["first_row_s"] == pytest.approx(progress["engine_start_s"] + 6, abs=0.01)
    assert progress["engine_start_s"] == sections["seconds"].engine_start


def test_rows_from_the_answer_cache_are_not_inferred() -> None:
    cached = group(5, entered=1.0, finished=2.0, cached=True)
    inferred = [group(3, entered=1.0, finished=2.0, failed=1), group(2, entered=1.0, finished=2.0)]
    update = WriterUpdate([cached, *inferred])
    assert (update.finished_rows, update.inferred_rows) == (10, 5)
    only_cached = WriterUpdate([cached])
    assert (only_cached.finished_rows, only_cached.inferred_rows) == (5, 0)
    assert WriterUpdate().inferred_rows == 0


def test_recent_rates_are_of_the_last_minutes() -> None:
    recent = RecentRates()
    assert recent.rates() == (None, None, None)
    for second in range(1, 1001):
        # From 600 s on a tenth as fast, by two workers.
        totals = Totals(min(second, 600) * 10 + max(second - 600, 0), second, 2.0 * second)
        recent.add(0.0, float(second), totals)
        if second == 300:
            assert recent.rates() == (10.0, 1.0, 5.0)
    assert recent.rates() == (1.0, 1.0, 0.5)
    assert len(recent._totals) <= RECENT_SECONDS + 1
    recent.add(0.0, 2000.0, Totals(16_400, 2000, 4000.0))  # no update for longer than that
    assert recent.rates() == (10.0, 1.0, 5.0)


def test_worker_that_came_lately_does_not_lower_the_rate_of_one() -> None:
    meter, now = Meter(1000, 0), time.time()
    add(meter, group(200, entered=now - 200, finished=now, worker="a"))
    add(meter, group(20, entered=now - 20, finished=now, worker="b"))
    progress = meter.progress()
    assert (progress["workers"], progress["worker_rows_per_s"]) == (2, 1.0)
    assert progress["longest_row_s"] == 200
    assert progress["recent_rows_per_s"] == pytest.approx(1.1, abs=0.01)


def test_what_is_not_measured_is_null() -> None:
    assert Meter(3, 3).report_sections()["seconds"].inference is None
    meter = Meter(1, 0)
    add(meter, group(1, entered=1.0, finished=2.0, tokens=None))
    assert meter.report_sections()["throughput"].input_tokens_per_s is None
    progress = meter.progress()
    unknown = ("input_tokens", "cached_tokens", "truncated", "gpu_mean")
    assert {progress[name] for name in unknown} == {None}


def test_summary_has_the_answers_columns() -> None:
    [schema] = group(1, entered=1.0, finished=2.0).column("schema").to_pylist()
    assert pa.ipc.read_schema(pa.BufferReader(schema)).names == ["answer"]
    assert group(1, entered=1.0, finished=2.0, failed=1).column("schema").to_pylist() == [None]


def test_balance_compares_the_time_in_which_workers_had_requests() -> None:
    meter = Meter(40, 0)
    for worker, times in {"a": [(0.5, 4.5), (1.0, 8.5)], "b": [(0.5, 2.5), (6.5, 8.5)]}.items():
        add(meter, *(group(10, entered=start, finished=stop, worker=worker) for start, stop in times))
    assert meter.report_sections()["balance"] == Balance(workers=2, max_over_mean=1.333)  # 8 s and 4 s


def test_details_show_each_worker_and_the_time_of_inference() -> None:
    meter = Meter(40, 0)
    assert meter.details() == {"per_worker": None, "history": None}
    gpu = (GpuSample("g", 80, 4, 8),)
    add(meter, group(30, entered=10.0, finished=18.0, worker="a", gpus="g", failed=2))
    add(meter, group(10, entered=12.0, finished=14.0, worker="b"), samples=[NodeSample(11.5, 50.0, 1.0, gpu)])
    details = meter.details()
    assert details["per_worker"] == [
        {"name": "a", "rows": 30, "busy_share": 1.0}, {"name": "b", "rows": 10, "busy_share": 0.25},
    ]  # fmt: skip
    history = details["history"]
    assert sum(history["rows"]) == meter.finished_rows
    assert (history["offset_s"], history["span_s"]) == (1.0, 1.0)
    assert (history["gpu_busy"][0], history["cpu_busy"][0]) == (80.0, 50.0)


def test_history_has_rows_that_no_engine_saw_and_begins_with_inference() -> None:
    def refused(rows: int, finished: float | None) -> pa.Table:
        answers = answer_table(
            pa.table({"__unit": [0] * rows, "__offset": range(rows)}), finished_at=[finished] * rows
        )
        bad = failed_table(answers, [(i, "InvalidRequest", "no") for i in range(rows)])
        none = pa.array([], pa.int64())
        return summarize_group(answers, pa.table({"__truncated": none, "__degenerate": none}), bad)

    meter = Meter(40, 0)
    add(meter, refused(3, 1000.0), refused(2, None))
    assert meter.details()["history"] is None
    add(meter, group(10, entered=1060.2, finished=1062.5))
    add(meter, refused(1, None), refused(4, 1001.0), group(20, entered=1061.0, finished=1065.5))
    history = meter.details()["history"]
    assert history["rows"] == [4, 0, 16, 0, 0, 20]
    assert history["offset_s"] == pytest.approx(-0.2)
    assert meter.progress()["first_row_s"] == pytest.approx(1062.5 - meter.began, abs=0.1)
    # A row without a request, such as a cached one, takes its time all the same.
    add(meter, refused(1, 1070.2))
    assert meter.report_sections()["seconds"].inference == pytest.approx(10.0)


def test_of_very_many_workers_the_busiest_and_the_idlest_are_named() -> None:
    meter = Meter(200, 0)
    add(meter, *(group(1, entered=0.5, finished=1.5 + n, worker=f"w{n:03}") for n in range(200)))
    names = [worker["name"] for worker in meter.details()["per_worker"]]
    assert (len(names), names[0], names[-1]) == (64, "w199", "w000")
    assert meter.report_sections()["balance"].workers == 200


def test_tokens_per_gpu_are_reported_where_the_gpus_are_known() -> None:
    meter = Meter(10, 0)
    add(meter, group(10, entered=1.0, finished=6.0))
    throughput = meter.report_sections(lambda workers: 2.0 * (workers or 0))["throughput"]
    assert throughput.tokens_per_s_per_gpu == 12.0
    assert meter.report_sections(lambda workers: None)["throughput"].tokens_per_s_per_gpu is None


def test_gpu_seconds_are_from_the_engines_start_to_the_last_row() -> None:
    def sections(meter: Meter) -> dict[str, Any]:
        return meter.report_sections(lambda workers: 2.0 * (workers or 0))

    meter, began = Meter(100, resumed_rows=50), time.time()
    assert sections(meter)["gpu_seconds"] is None
    meter.add_queue_time(60.0)
    meter.add_queue_time(40.0)
    add(meter, group(50, entered=began + 140, finished=began + 200, tokens=100))
    used, seconds = sections(meter)["gpu_seconds"], sections(meter)["seconds"]
    assert used == pytest.approx(200, abs=0.5)  # 40 s of start and 60 s of inference
    assert used == pytest.approx(2 * (seconds.engine_start + seconds.inference), abs=0.01)
    assert meter.report_sections()["gpu_seconds"] is None


def test_workers_that_come_later_hold_gpus_from_then_on() -> None:
    meter, began = Meter(100, 0), time.time()
    for worker, entered in (("first", 40), ("as slow", 80), ("late", 140)):
        rows = group(20, entered=began + entered, finished=began + 240, worker=worker)
        add(meter, rows)
    used = [
        meter.report_sections(lambda workers: 2.0 * (workers or 0), fewest=fewest)["gpu_seconds"]
        for fewest in (None, 3, 1)
    ]
    assert used == pytest.approx([2 * 3 * 240, 2 * 3 * 240, 2 * (240 + 240 + 140)], abs=1)


def test_utilisation_covers_the_time_of_inference() -> None:
    def sample(at: float, busy: int, cpu: float = 50.0) -> NodeSample:
        return NodeSample(at, cpu, 40.0, (GpuSample("g0", busy, 60, 80), GpuSample("g1", 100, 8, 80)))

    meter = Meter(100, 0)
    samples = [sample(float(t), busy=0 if t < 10 else 90) for t in range(5, 30)]
    add(meter, samples=samples)
    add(meter, group(10, entered=10.0, finished=12.0))
    add(meter, group(10, entered=12.0, finished=19.0), samples=[sample(19.0, busy=10, cpu=100.0)])
    assert meter.report_sections()["utilisation"] == Utilisation(
        gpu_mean=91.4, gpu_p10=90.0, gpu_memory_max=75.0, cpu_mean=54.5, memory_max=40.0
    )
    assert Meter(1, 0).report_sections()["utilisation"] == Utilisation()


def test_gpus_that_other_jobs_hold_do_not_count() -> None:
    def sample(at: float, node: str) -> NodeSample:
        gpus = GpuSample(f"{node}-0", 80, 40, 80), GpuSample(f"{node}-1", 0, 80, 80)
        return NodeSample(at, 50.0, 40.0, gpus)

    meter = Meter(100, 0)
    add(meter, samples=[sample(t, node) for t in (11.0, 12.0) for node in ("a", "b", "c")])
    add(meter, group(10, entered=10.0, finished=20.0, gpus="a-0"), group(10, entered=11.0, finished=19.0))
    assert meter.report_sections()["utilisation"].model_dump(include={"gpu_mean", "gpu_memory_max"}) == {
        "gpu_mean": 80.0, "gpu_memory_max": 50.0,
    }  # fmt: skip
    # A worker may hold several, and others more.
    add(meter, samples=[sample(t, node) for t in (21.0, 22.0) for node in ("a", "b", "c")])
    add(meter, group(10, entered=20.0, finished=30.0, gpus="b-0,b-1", worker="v"))
    # a-0: 4 samples of 80; b: 2 of 80 and 2 of 0.
    assert meter.report_sections()["utilisation"].gpu_mean == 60.0


def test_bandwidth_is_the_mean_of_the_cards_that_count_it() -> None:
    def sample(at: float, *shares: float | None) -> NodeSample:
        gpus = (GpuSample(f"g{i}", 98, 40, 80, bandwidth=share) for i, share in enumerate(shares))
        return NodeSample(at, 50.0, 40.0, tuple(gpus))

    def share_of(*samples: NodeSample) -> float | None:
        meter = Meter(100, 0)
        add(meter, samples=samples)
        add(meter, group(10, entered=10.0, finished=20.0, gpus="g0,g1"))
        share: float | None = meter.report_sections()["utilisation"].bandwidth_share
        assert meter.progress()["bandwidth_share"] == share
        return share

    assert share_of(sample(11.0, 30.0, 50.0, 90.0), sample(12.0, 40.0, None)) == 40.0
    assert share_of(sample(11.0, None, None)) is None


def test_work_is_told_as_a_share_of_what_the_cards_do() -> None:
    def sample(at: float, *names: str | None) -> NodeSample:
        return NodeSample(
            at, 50.0, 40.0, tuple(GpuSample(f"g{i}", 98, 40, 80, n) for i, n in enumerate(names))
        )

    def meter_of(*names: str | None, gpus: str = "g0", tokens: int | None = 10) -> Meter:
        meter = Meter(100, 0, ModelWork(layers=1e12, head=2e12, attention=0, precision="half"))
        add(meter, samples=[sample(11.0, *names)])
        add(meter, group(10, entered=10.0, finished=20.0, gpus=gpus, tokens=tokens))
        return meter

    # A row computes 10 tokens less 4 cached, and one of 2 sampled: 10 rows in 10 s.
    share = 100 * (2 * 7e12 + 2 * 4e12) / 989.4e12
    for meter in (meter_of("NVIDIA H200"), meter_of("NVIDIA H200", "another's")):
        assert meter.report_sections()["utilisation"].flops_share == pytest.approx(share, abs=0.001)
        assert meter.progress()["flops_share"] == pytest.approx(share, abs=0.001)
    two = meter_of("NVIDIA H200", "NVIDIA H200", gpus="g0,g1")
    assert two.report_sections()["utilisation"].flops_share == pytest.approx(share / 2, abs=0.001)
    for unknown in (
        meter_of("a new card"), meter_of(None), meter_of("NVIDIA H200", "a new card", gpus="g0,g1"),
        meter_of("NVIDIA H200", gpus=""), meter_of("NVIDIA H200", tokens=None),
    ):  # fmt: skip
        assert unknown.report_sections()["utilisation"].flops_share is None
