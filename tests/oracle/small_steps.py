"""The product reads files in steps of thousands of rows, or of megabytes. In some cases a step is a row or
two, so that a small case has several."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from airflow_provider_raydatallm.processor.input.formats import parquet_batches, text


@contextlib.contextmanager
def small_steps(rows: int, text_bytes: int) -> Iterator[None]:
    with (
        mock.patch.object(parquet_batches, "BATCH_ROWS", rows),
        mock.patch.object(text, "TEXT_RANGE_BYTES", text_bytes),
    ):
        yield
