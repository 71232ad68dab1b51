"""Counts and rates of a run, from what leaves the engine."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.report import Balance, Seconds, StartupSeconds, Throughput
from airflow_provider_raydatallm.processor.metrics.node_usage import NodeSample, NodeUsage
from airflow_provider_raydatallm.processor.request.answer_shape import TRUNCATED_ANSWER

#: What recent rates are rates over: longer than a batch takes, shorter than a change should go unseen.
RECENT_SECONDS = 300.0

#: Counted where an engine tells, else null.
_COUNTS = ("truncated", "cached", "input_tokens", "output_tokens", "cached_tokens")
_SUMMARY = pa.struct(
    [
        ("rows", pa.int64()), ("failed", pa.int64()), *((name, pa.int64()) for name in _COUNTS),
        ("worker", pa.string()), ("gpus", pa.string()),
        ("first_request", pa.float64()), ("last_row", pa.float64()), ("schema", pa.binary()),
    ]
)  # fmt: skip


def summarize_group(answers: pa.Table, rows: pa.Table, failed: pa.Table) -> pa.Table:
    """One row for a group of rows that left the engine: counts, which worker answered them, epoch seconds,
    and the schema of the answers.

    A row's request entered the engine at `finished_at - engine_seconds`, so that the first request is known
    without a word from the engine.
    """
    entered = pc.subtract(answers.column("finished_at"), answers.column("engine_seconds"))
    fields = pa.schema([f for f in rows.schema if not f.name.startswith("__")])
    values = [
        rows.num_rows, failed.num_rows, _truncated(answers, rows, failed),
        *(pc.sum(answers.column(name)).as_py() for name in _COUNTS[1:]),
        answers.column("worker")[0].as_py(), answers.column("gpus")[0].as_py(),
        pc.min(entered).as_py(), pc.max(answers.column("finished_at")).as_py(),
        fields.serialize().to_pybytes() if rows.num_rows else None,
    ]  # fmt: skip
    made = dict(zip((f.name for f in _SUMMARY), values, strict=True))
    return pa.Table.from_struct_array(pa.array([made], _SUMMARY))


def _truncated(answers: pa.Table, rows: pa.Table, failed: pa.Table) -> int | None:
    """Answers that max_tokens cut, those that were no answers for it among them; None when the engine does
    not tell."""
    if answers.column("finish_reason").null_count == answers.num_rows:
        return None
    failed_for_it = pc.sum(pc.equal(failed.column("error_type"), TRUNCATED_ANSWER)).as_py()
    return (pc.sum(rows.column("__truncated")).as_py() or 0) + (failed_for_it or 0)


class WriterUpdate(NamedTuple):
    """What there is to hear of rows in work: `summary` tables of those that finished and samples of the
    nodes, both since the last time, and how many rows have failed so far."""

    summaries: Sequence[pa.Table] = ()
    failed: int = 0
    samples: Sequence[NodeSample] = ()


def finished_rows(news: WriterUpdate) -> int:
    """Rows that finished, one way or the other."""
    return sum(pc.sum(s.column(name)).as_py() for s in news.summaries for name in ("rows", "failed"))


def inferred_rows(news: WriterUpdate) -> int:
    """Those of them that an engine of this slice answered: there is one then."""
    kept = (pc.sum(s.column("cached")).as_py() or 0 for s in news.summaries)
    return finished_rows(news) - sum(kept)


class Meter:
    """Adds up what this run answers, from `News`; `resumed` rows were finished before it.

    `failed`: rows of the slice that have failed so far, those that will be tried again among them; whoever
    knows them says so.
    """

    def __init__(self, planned: int, resumed: int) -> None:
        self.planned = planned
        self.resumed = resumed
        self.failed = 0
        self.rows = 0
        self._counts: Counter[str] = Counter()
        self._began = time.time()
        self._queued = 0.0
        self._first_request: float | None = None
        self._first_row: float | None = None
        self._last_row: float | None = None
        self._publish: float | None = None
        self._recent = _Recent()
        self._busy: dict[str, _Busy] = {}
        self._gauges = NodeUsage()
        self._held_gpus: set[str] = set()

    def add(self, news: WriterUpdate) -> None:
        self._gauges.add(news.samples)
        for one in (one for summary in news.summaries for one in summary.to_pylist()):
            self.rows += one["rows"] + one["failed"]
            self._counts.update({name: one[name] for name in _COUNTS if one[name] is not None})
            if (entered := one["first_request"]) is not None:
                self._first_request = min(entered, self._first_request or entered)
            if (finished := one["last_row"]) is not None:
                self._first_row = min(finished, self._first_row or finished)
                self._last_row = max(finished, self._last_row or finished)
            if one["worker"] is not None and entered is not None:
                self._busy.setdefault(one["worker"], _Busy()).add(entered, finished)
            if one["gpus"]:
                self._held_gpus.update(one["gpus"].split(","))
        if self._first_request is not None and self._last_row is not None:
            self._gauges.count(self._first_request, self._last_row, self._held_gpus)
            self._recent.add(self._first_request, time.time(), self.rows, self.tokens)

    @property
    def tokens(self) -> int:
        return self._counts["input_tokens"] + self._counts["output_tokens"]

    def queued(self, seconds: float) -> None:
        """Waited for room on the cluster for so long, as far as is known; an engine's start begins after
        it."""
        if self._first_request is None:
            self._queued = seconds

    def published(self, seconds: float) -> None:
        self._publish = seconds

    def progress(self) -> dict[str, Any]:
        """How the run is getting on; None while nothing is known.

        Rows are the slice's, all else is this run's. Rates are over the time since the first request, recent
        ones over the last `RECENT_SECONDS` of it, and time is left at the recent one. Seconds are `Report`'s;
        `first_row_s` runs from the beginning. `busy` is the share of the time in which a worker had a
        request: the mean, and that of the one which had the least. The rest is percent (`Utilisation`).
        """
        elapsed = time.time() - self._first_request if self._first_request else None
        rate = self.rows / elapsed if elapsed and elapsed > 0 else None
        recent, recent_tokens = self._recent.rates()
        busy = self._busy_shares
        counts = {name: self._counts.get(name) for name in _COUNTS}
        return {
            # Rows that are tried again count again.
            "rows": min(self.resumed + self.rows, self.planned),
            "planned": self.planned,
            "failed": self.failed,
            **counts,
            "rows_per_s": _rounded(rate),
            "tokens_per_s": _rounded(self.tokens / elapsed) if rate and elapsed else None,
            "recent_rows_per_s": _rounded(recent),
            "recent_tokens_per_s": _rounded(recent_tokens),
            "eta_s": _rounded(max(self.planned - self.resumed - self.rows, 0) / (recent or rate))
            if rate
            else None,
            "elapsed_s": _rounded(time.time() - self._began),
            "queued_s": _rounded(self._queued),
            "engine_start_s": _rounded(self._engine_start),
            "first_row_s": _rounded(self._first_row - self._began) if self._first_row else None,
            "workers": len(busy) or None,
            "busy": _rounded(sum(busy) / len(busy)) if busy else None,
            "least_busy": _rounded(min(busy)) if busy else None,
            **self._gauges.figures().model_dump(),
        }

    @property
    def _inference(self) -> float | None:
        if self._first_request is None or self._last_row is None:
            return None
        return max(self._last_row - self._first_request, 1e-6)

    @property
    def _engine_start(self) -> float | None:
        return self._first_request - self._began - self._queued if self._first_request else None

    @property
    def busy(self) -> float | None:
        """Share of the time of inference in which a worker had a request, of all workers."""
        shares = self._busy_shares
        return sum(shares) / len(shares) if shares else None

    @property
    def _busy_shares(self) -> list[float]:
        inference = self._inference
        return [b.seconds / inference for b in self._busy.values()] if inference else []

    def report_sections(
        self,
        gpus_of: Callable[[int | None], float | None] = lambda workers: None,
        start: Mapping[str, float | None] | None = None,
    ) -> dict[str, Any]:
        """The measured parts of a `Report`: seconds and rates of this run. Nothing was measured in a run that
        had nothing left to answer.

        :param gpus_of: how many GPUs so many workers hold, None when the number of workers is not known.
        :param start: seconds of what came before the first request, by the names of `Start`.
        """
        inference = self._inference
        busy = self._busy_shares
        gpus = gpus_of(len(busy) or None)
        return {
            "seconds": Seconds(
                start=StartupSeconds(**{n: _rounded(s) for n, s in start.items()})
                if start is not None
                else None,
                engine_start=_rounded(self._engine_start),
                inference=_rounded(inference),
                publish=_rounded(self._publish),
            ),
            "throughput": Throughput(
                rows_per_s=_rounded(self.rows / inference) if inference else None,
                input_tokens_per_s=_rate(self._counts["input_tokens"], inference),
                output_tokens_per_s=_rate(self._counts["output_tokens"], inference),
                tokens_per_s_per_gpu=_rate(self.tokens, inference * gpus) if inference and gpus else None,
            ),
            "utilisation": self._gauges.figures(),
            "balance": Balance(
                workers=len(busy) or None,
                max_over_mean=_rounded(max(busy) * len(busy) / sum(busy)) if any(busy) else None,
            ),
        }


class _Recent:
    """Rows and tokens a second over the last `RECENT_SECONDS`, from how many there were at times."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int, int]] = deque()

    def add(self, start: float, now: float, rows: int, tokens: int) -> None:
        """:param start: when there was none yet."""
        if not self._marks:
            self._marks.append((start, 0, 0))
        self._marks.append((now, rows, tokens))
        while self._marks[1][0] <= now - RECENT_SECONDS:
            self._marks.popleft()

    def rates(self) -> tuple[float | None, float | None]:
        if not self._marks or self._marks[-1][0] <= self._marks[0][0]:
            return None, None
        (start, rows_then, tokens_then), (stop, rows, tokens) = self._marks[0], self._marks[-1]
        return (rows - rows_then) / (stop - start), (tokens - tokens_then) / (stop - start)


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
