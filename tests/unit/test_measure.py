from __future__ import annotations

import time

import pyarrow as pa

from airflow_provider_raydatallm.processor.measure import Meter
from airflow_provider_raydatallm.spec import Counts, Throughput, Tokens


def batch(rows: int, *, entered: float, finished: float, input_tokens: int | None = 10) -> pa.Table:
    return pa.table(
        {
            "__input_tokens": pa.array([input_tokens] * rows, pa.int64()),
            "__output_tokens": [2] * rows,
            "__engine_seconds": [finished - entered] * rows,
            "__finished_at": [finished] * rows,
            "__invalid": [True] + [False] * (rows - 1),
        }
    )


def test_rates_run_from_the_first_request_to_the_last_row() -> None:
    meter, now = Meter(60), time.time()
    meter.add(batch(40, entered=now + 3, finished=now + 9))
    meter.add(batch(20, entered=now + 1, finished=now + 5))
    found = meter.figures()
    assert found["counts"] == Counts(planned=60, succeeded=60, invalid_output=2)
    assert found["tokens"] == Tokens(input=600, output=120)
    assert found["seconds"].inference == 8.0
    assert found["throughput"] == Throughput(
        rows_per_s=7.5, input_tokens_per_s=75.0, output_tokens_per_s=15.0
    )
    assert round(found["seconds"].engine_start) == 1


def test_what_is_not_measured_is_null() -> None:
    assert Meter(3).figures()["seconds"].inference is None
    meter = Meter(1)
    meter.add(batch(1, entered=1.0, finished=2.0, input_tokens=None))
    assert meter.figures()["tokens"] == Tokens()
    assert meter.figures()["throughput"].input_tokens_per_s is None
