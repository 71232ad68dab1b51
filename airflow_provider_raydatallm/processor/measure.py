"""Counts and rates of a run, from what leaves the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.processor.gauges import Gauges, Sample
from airflow_provider_raydatallm.spec import Balance, Seconds, Throughput

_SUMMARY = pa.struct(
    [
        ("rows", pa.int64()), ("failed", pa.int64()),
        ("input_tokens", pa.int64()), ("output_tokens", pa.int64()), ("worker", pa.string()),
        ("first_request", pa.float64()), ("last_row", pa.float64()), ("schema", pa.binary()),
    ]
)  # fmt: skip


def summary(answers: pa.Table, rows: pa.Table, failed: pa.Table) -> pa.Table:
    """One row for a group of rows that left the engine: counts, which worker answered them, epoch seconds,
    and the schema of the answers.

    A row's request entered the engine at `finished_at - engine_seconds`, so that the first request is known
    without a word from the engine.
    """
    entered = pc.subtract(answers.column("finished_at"), answers.column("engine_seconds"))
    fields = pa.schema([f for f in rows.schema if not f.name.startswith("__")])
    values = [
        rows.num_rows, failed.num_rows,
        pc.sum(answers.column("input_tokens")).as_py(), pc.sum(answers.column("output_tokens")).as_py(),
        answers.column("worker")[0].as_py(),
        pc.min(entered).as_py(), pc.max(answers.column("finished_at")).as_py(),
        fields.serialize().to_pybytes() if rows.num_rows else None,
    ]  # fmt: skip
    made = dict(zip((f.name for f in _SUMMARY), values, strict=True))
    return pa.Table.from_struct_array(pa.array([made], _SUMMARY))


class News(NamedTuple):
    """What there is to hear of rows in work: `summary` tables of those that finished and samples of the
    nodes, both since the last time, and how many rows have failed so far."""

    summaries: Sequence[pa.Table] = ()
    failed: int = 0
    samples: Sequence[Sample] = ()


def rows_in(news: News) -> int:
    """Rows that finished, one way or the other."""
    return sum(pc.sum(s.column(name)).as_py() for s in news.summaries for name in ("rows", "failed"))


class Meter:
    """Adds up what this run answers, from `News`; `resumed` rows were finished before it."""

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
        self._busy: dict[str, _Busy] = {}
        self._gauges = Gauges()

    def add(self, news: News) -> None:
        self._gauges.add(news.samples)
        for one in (one for summary in news.summaries for one in summary.to_pylist()):
            self.rows += one["rows"] + one["failed"]
            self.input_tokens += one["input_tokens"] or 0
            self.output_tokens += one["output_tokens"] or 0
            if (entered := one["first_request"]) is not None:
                self._first_request = min(entered, self._first_request or entered)
            if (finished := one["last_row"]) is not None:
                self._last_row = max(finished, self._last_row or finished)
            if one["worker"] is not None and entered is not None:
                self._busy.setdefault(one["worker"], _Busy()).add(entered, finished)
        if self._first_request is not None and self._last_row is not None:
            self._gauges.count(self._first_request, self._last_row)

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

    @property
    def busy(self) -> float | None:
        """Share of the time of inference in which a worker had a request, of all workers."""
        if not self._busy or self._first_request is None or self._last_row is None:
            return None
        inference = max(self._last_row - self._first_request, 1e-6)
        return sum(self._busy_seconds) / len(self._busy) / inference

    @property
    def _busy_seconds(self) -> list[float]:
        return [b.seconds for b in self._busy.values()]

    def figures(self, gpus_of: Callable[[int | None], float | None] = lambda workers: None) -> dict[str, Any]:
        """The measured parts of a `Report`: seconds and rates of this run. Nothing was measured in a run that
        had nothing left to answer.

        :param gpus_of: how many GPUs so many workers hold, None when the number of workers is not known.
        """
        inference = None
        if self._first_request is not None and self._last_row is not None:
            inference = max(self._last_row - self._first_request, 1e-6)
        busy = self._busy_seconds
        gpus = gpus_of(len(busy) or None)
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
                tokens_per_s_per_gpu=_rate(self.input_tokens + self.output_tokens, inference * gpus)
                if inference and gpus
                else None,
            ),
            "utilisation": self._gauges.figures(),
            "balance": Balance(
                workers=len(busy) or None,
                max_over_mean=_rounded(max(busy) * len(busy) / sum(busy)) if any(busy) else None,
            ),
        }


class _Busy:
    """How long a worker had at least one request, from groups in about the order in which they finished."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = 0.0

    def add(self, start: float, stop: float) -> None:
        self.seconds += max(0.0, stop - max(start, self._until))
        self._until = max(self._until, stop)


def _rate(tokens: int, seconds: float | None) -> float | None:
    return _rounded(tokens / seconds) if seconds and tokens else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
