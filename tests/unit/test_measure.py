from __future__ import annotations

import time

import pyarrow as pa

from airflow_provider_raydatallm.processor.answers import FAILED_FIELDS
from airflow_provider_raydatallm.processor.measure import Meter, summary
from airflow_provider_raydatallm.spec import Throughput


def group(
    rows: int, *, entered: float, finished: float, tokens: int | None = 10, failed: int = 0
) -> pa.Table:
    answers = pa.table(
        {
            "input_tokens": pa.array([tokens] * rows, pa.int64()),
            "output_tokens": pa.array([2] * rows, pa.int64()),
            "engine_seconds": [finished - entered] * rows,
            "finished_at": [finished] * rows,
        }
    )
    good = pa.table({"__unit": [0] * (rows - failed), "answer": ["a"] * (rows - failed)})
    bad = pa.table([pa.nulls(failed, f.type) for f in FAILED_FIELDS], schema=pa.schema(FAILED_FIELDS))
    return summary(answers, good, bad)


def test_rates_are_of_this_run_from_its_first_request_to_its_last_row() -> None:
    meter, now = Meter(100, resumed=40), time.time()
    meter.add(group(40, entered=now + 3, finished=now + 9, failed=1))
    meter.add(group(20, entered=now + 1, finished=now + 5))
    found = meter.figures()
    assert found["seconds"].inference == 8.0
    assert found["throughput"] == Throughput(
        rows_per_s=7.5, input_tokens_per_s=75.0, output_tokens_per_s=15.0
    )
    assert round(found["seconds"].engine_start) == 1
    assert meter.progress()["rows"] == 100


def test_progress_counts_what_was_resumed_but_rates_do_not() -> None:
    meter, now = Meter(100, resumed=50), time.time()
    meter.add(group(10, entered=now - 10, finished=now))
    said = meter.progress()
    assert (said["rows"], said["planned"]) == (60, 100)
    assert 0.9 < said["rows_per_s"] <= 1.0
    assert 39 < said["eta_s"] < 45


def test_what_is_not_measured_is_null() -> None:
    assert Meter(3, 3).figures()["seconds"].inference is None
    meter = Meter(1, 0)
    meter.add(group(1, entered=1.0, finished=2.0, tokens=None))
    assert meter.figures()["throughput"].input_tokens_per_s is None


def test_summary_tells_the_answers_columns() -> None:
    [schema] = group(1, entered=1.0, finished=2.0).column("schema").to_pylist()
    assert pa.ipc.read_schema(pa.BufferReader(schema)).names == ["answer"]
    assert group(1, entered=1.0, finished=2.0, failed=1).column("schema").to_pylist() == [None]
