"""Counts and rates of a run, from what leaves the engine."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.spec import Seconds, Throughput

_SUMMARY = pa.schema(
    [
        ("rows", pa.int64()), ("failed", pa.int64()),
        ("input_tokens", pa.int64()), ("output_tokens", pa.int64()),
        ("first_request", pa.float64()), ("last_row", pa.float64()), ("schema", pa.binary()),
    ]
)  # fmt: skip


def summary(answers: pa.Table, rows: pa.Table, failed: pa.Table) -> pa.Table:
    """One row for a group of rows that left the engine: counts, epoch seconds, and the schema of its answers.

    A row's request entered the engine at `finished_at - engine_seconds`, so that the first request is known
    without a word from the engine.
    """
    entered = pc.subtract(answers.column("finished_at"), answers.column("engine_seconds"))
    fields = pa.schema([f for f in rows.schema if not f.name.startswith("__")])
    values = [
        rows.num_rows, failed.num_rows,
        pc.sum(answers.column("input_tokens")).as_py(), pc.sum(answers.column("output_tokens")).as_py(),
        pc.min(entered).as_py(), pc.max(answers.column("finished_at")).as_py(),
        fields.serialize().to_pybytes() if rows.num_rows else None,
    ]  # fmt: skip
    return pa.table([pa.array([v], f.type) for v, f in zip(values, _SUMMARY, strict=True)], schema=_SUMMARY)


class Meter:
    """Adds up what this run answers, from `summary` tables; `resumed` rows were finished before it."""

    def __init__(self, planned: int, resumed: int) -> None:
        self.planned = planned
        self.resumed = resumed
        self.rows = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self._began = time.time()
        self._queued = 0.0
        self._first_request: float | None = None
        self._last_row: float | None = None
        self._publish: float | None = None

    def add(self, summaries: pa.Table) -> None:
        for one in summaries.to_pylist():
            self.rows += one["rows"] + one["failed"]
            self.input_tokens += one["input_tokens"] or 0
            self.output_tokens += one["output_tokens"] or 0
            if (entered := one["first_request"]) is not None:
                self._first_request = min(entered, self._first_request or entered)
            if (finished := one["last_row"]) is not None:
                self._last_row = max(finished, self._last_row or finished)

    def queued(self, seconds: float) -> None:
        """Waited for room on the cluster for so long, as far as is known; an engine's start begins after
        it."""
        if self._first_request is None:
            self._queued = seconds

    def published(self, seconds: float) -> None:
        self._publish = seconds

    def progress(self) -> dict[str, Any]:
        """Rows done, rates since the first request, and seconds left at that rate; None while nothing is
        known."""
        elapsed = time.time() - self._first_request if self._first_request else None
        rate = self.rows / elapsed if elapsed and elapsed > 0 else None
        return {
            "rows": self.resumed + self.rows,
            "planned": self.planned,
            "rows_per_s": _rounded(rate),
            "tokens_per_s": _rounded((self.input_tokens + self.output_tokens) / elapsed)
            if rate and elapsed
            else None,
            "eta_s": _rounded((self.planned - self.resumed - self.rows) / rate) if rate else None,
            "elapsed_s": _rounded(time.time() - self._began),
        }

    def figures(self) -> dict[str, Any]:
        """The measured parts of a `Report`: seconds and rates of this run. Nothing was measured in a run that
        had nothing left to answer."""
        inference = None
        if self._first_request is not None and self._last_row is not None:
            inference = max(self._last_row - self._first_request, 1e-6)
        return {
            "seconds": Seconds(
                engine_start=_rounded(self._first_request - self._began - self._queued)
                if self._first_request
                else None,
                inference=_rounded(inference),
                publish=_rounded(self._publish),
            ),
            "throughput": Throughput(
                rows_per_s=_rounded(self.rows / inference) if inference else None,
                input_tokens_per_s=_rate(self.input_tokens, inference),
                output_tokens_per_s=_rate(self.output_tokens, inference),
            ),
        }


def _rate(tokens: int, seconds: float | None) -> float | None:
    return _rounded(tokens / seconds) if seconds and tokens else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
