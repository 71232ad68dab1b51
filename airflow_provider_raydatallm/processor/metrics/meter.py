"""Counts and rates of a run, from the groups of rows that leave the engine."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.counters import (
    COUNTERS,
    Counter,
)
from airflow_provider_raydatallm.contract.result.report import (
    MOST_WORKERS,
    Balance,
    Seconds,
    StartupSeconds,
    Throughput,
    Utilisation,
    WorkerShare,
)
from airflow_provider_raydatallm.contract.result.row_errors import OF_ANSWERS
from airflow_provider_raydatallm.processor.metrics.history import RunHistory
from airflow_provider_raydatallm.processor.metrics.node_usage import NodeSample, NodeUsage
from airflow_provider_raydatallm.processor.metrics.spending import mean_delay
from airflow_provider_raydatallm.processor.sizing.cards import card_of
from airflow_provider_raydatallm.processor.sizing.model_work import ModelWork

#: Window of recent rates: longer than a batch takes, short enough to show a change.
RECENT_SECONDS = 300.0
#: Seconds of answers before which their rate foretells nothing: the engine is only filling.
_FILLING_S = 30.0

_SHOWN = {counter.name: counter for counter in COUNTERS if counter.metric is not None}
_SUMMARY = pa.struct(
    [
        ("rows", pa.int64()), ("failed", pa.int64()), ("invalid", pa.int64()),
        *((name, pa.int64()) for name in _SHOWN),
        ("computed", pa.float64()), ("context", pa.float64()),
        ("worker", pa.string()), ("gpus", pa.string()),
        ("first_request", pa.float64()), ("last_row", pa.float64()), ("longest", pa.float64()),
        ("schema", pa.binary()),
    ]
)  # fmt: skip


def summarize_group(answers: pa.Table, rows: pa.Table, failed: pa.Table) -> pa.Table:
    """Returns one row for a group of rows that left the engine: counts, the worker, epoch seconds and the
    schema of the answers.

    A row's request entered the engine at `finished_at - engine_seconds`, which gives the first request.
    """
    entered = pc.subtract(answers.column("finished_at"), answers.column("engine_seconds"))
    fields = pa.schema([f for f in rows.schema if not f.name.startswith("__")])
    values = [
        rows.num_rows, failed.num_rows, _count_invalid(failed),
        *(_sum(c, answers, rows, failed) for c in _SHOWN.values()),
        *_work_of(answers),
        answers.column("worker")[0].as_py(), answers.column("gpus")[0].as_py(),
        pc.min(entered).as_py(), pc.max(answers.column("finished_at")).as_py(),
        pc.max(answers.column("engine_seconds")).as_py(),
        fields.serialize().to_pybytes() if rows.num_rows else None,
    ]  # fmt: skip
    summary = dict(zip((f.name for f in _SUMMARY), values, strict=True))
    return pa.Table.from_struct_array(pa.array([summary], _SUMMARY))


def _work_of(answers: pa.Table) -> tuple[float | None, float | None]:
    """Returns how many tokens the engine computed, and the tokens before each of them, summed: the last token
    of an answer is sampled, and not computed. None where a row's tokens are unknown."""
    names = ("input_tokens", "cached_tokens", "output_tokens")
    prompts, cached, sampled = (answers.column(name).to_numpy().astype(float) for name in names)
    ends = prompts + np.maximum(sampled - 1, 0)
    computed, context = (ends - cached).sum(), ((ends**2 - cached**2) / 2).sum()
    return (None, None) if np.isnan(computed) else (float(computed), float(context))


def _sum(counter: Counter, answers: pa.Table, rows: pa.Table, failed: pa.Table) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = answers.column(counter.name) if counter.source != "parser" else rows.column(f"__{counter.name}")
    total: int | None = pc.sum(known).as_py()
    if counter.failed_as is not None:
        failed_for_it = pc.sum(pc.equal(failed.column("error_type"), counter.failed_as)).as_py()
        total = (total or 0) + failed_for_it if failed_for_it else total
    return total


def _count_invalid(failed: pa.Table) -> int:
    of_answers = pc.is_in(failed.column("error_type"), pa.array(OF_ANSWERS))
    return pc.sum(of_answers).as_py() or 0


class Deaths(NamedTuple):
    """How often workers died before a row was answered, and what Ray says of the last one."""

    total: int = 0
    reason: str = ""


class WriterUpdate(NamedTuple):
    """The writers' counts since the last update: summaries of finished groups, failed rows, and samples of
    the nodes. Of `deaths`, all of the run. `probe_workers`: those that answered rows which are not the
    slice's."""

    summaries: Sequence[pa.Table] = ()
    failed: int = 0
    samples: Sequence[NodeSample] = ()
    deaths: Deaths = Deaths()
    probe_workers: frozenset[str] = frozenset()

    @property
    def workers(self) -> frozenset[str]:
        """Those that answered."""
        named = (name for summary in self.summaries for name in summary.column("worker").to_pylist())
        return self.probe_workers.union(filter(None, named))

    @property
    def finished_rows(self) -> int:
        """Rows that succeeded or failed."""
        return sum(pc.sum(s.column(name)).as_py() for s in self.summaries for name in ("rows", "failed"))

    def without_rows(self) -> WriterUpdate:
        """What is left where the rows are not the slice's."""
        return self._replace(summaries=(), failed=0, probe_workers=self.workers)

    @property
    def settled_rows(self) -> int:
        """Rows that were answered, or failed, also before they reached the engine."""
        answered: int = sum(pc.sum(s.column("rows")).as_py() for s in self.summaries)
        return answered + self.failed

    @property
    def inferred_rows(self) -> int:
        """Finished rows that this slice's engine answered, not the answer cache."""
        return self.finished_rows - sum(pc.sum(s.column("cached")).as_py() or 0 for s in self.summaries)


class Meter:
    """Aggregates the `WriterUpdate`s of a run; `resumed_rows` were finished before it. `work`: of its model,
    where that is known.

    `failed_rows`: rows of the slice that have failed so far, including those to be retried, and
    `invalid_rows`: those of them whose answers lack their shape; set by the caller.
    """

    def __init__(self, planned_rows: int, resumed_rows: int, work: ModelWork | None = None) -> None:
        self.planned_rows = planned_rows
        self.resumed_rows = resumed_rows
        self.failed_rows = self.invalid_rows = 0
        self.finished_rows = 0
        self._counts: dict[str, int] = {}
        #: Epoch seconds.
        self.began = time.time()
        self._queue_s = 0.0
        #: Of engines after the first: before the last row, and since then.
        self._later_queue_s = self._waiting_s = 0.0
        self._publish_s: float | None = None
        self._first_request: float | None = None
        self._first_row: float | None = None
        self._last_row: float | None = None
        self._recent = RecentRates()
        self._longest_row_s = 0.0
        self._work_by_worker: dict[str, _Work] = {}
        self._history = RunHistory()
        #: That need no engine: their history begins with that of the others.
        self._rows_before_requests = 0
        self._node_usage = NodeUsage(self._history)
        self._held_gpus: set[str] = set()
        self._work = work
        #: Of all rows; None once those of a row are unknown.
        self._operations: float | None = 0.0 if work is not None else None

    def add(self, update: WriterUpdate) -> None:
        self._node_usage.add(update.samples)
        for group in (group for summary in update.summaries for group in summary.to_pylist()):
            self.finished_rows += group["rows"] + group["failed"]
            self.invalid_rows += group["invalid"]
            known = {name: group[name] for name in _SHOWN if group[name] is not None}
            self._counts |= {name: self._counts.get(name, 0) + count for name, count in known.items()}
            entered, finished = group["first_request"], group["last_row"]
            if entered is not None:
                self._longest_row_s = max(group["longest"], self._longest_row_s)
                self._first_request = min(entered, self._first_request or entered)
                self._first_row = min(finished, self._first_row or finished)
            if finished is not None:
                self._last_row = max(finished, self._last_row or finished)
                self._later_queue_s, self._waiting_s = self._later_queue_s + self._waiting_s, 0.0
            self._rows_before_requests += group["rows"] + group["failed"]
            if self._first_request is not None and self._last_row is not None:
                at = max(finished or self._last_row, self._first_request)
                self._history.add_rows(at, self._rows_before_requests)
                self._rows_before_requests = 0
            if group["worker"] is not None and entered is not None:
                work = self._work_by_worker.setdefault(group["worker"], _Work())
                work.add(entered, finished, group["rows"] + group["failed"])
            if self._work is not None and self._operations is not None:
                computed, sampled, context = group["computed"], group["output_tokens"], group["context"]
                self._operations = (
                    None
                    if computed is None
                    else self._operations + self._work.operations(computed, sampled, context)
                )
            if group["gpus"]:
                self._held_gpus.update(group["gpus"].split(","))
        if self._first_request is not None and self._last_row is not None:
            self._node_usage.count_between(self._first_request, self._last_row, self._held_gpus)
            worker_s = sum(work.seconds for work in self._work_by_worker.values())
            now, first = time.time(), self._first_request
            self._recent.add(first, now, Totals(self.finished_rows, self.tokens, worker_s))

    def add_queue_time(self, seconds: float) -> None:
        """Adds seconds of waiting for room on the cluster; the engine's start begins after them."""
        if self._first_request is None:
            self._queue_s += seconds
        else:
            self._waiting_s += seconds

    def record_publish_time(self, seconds: float) -> None:
        self._publish_s = seconds

    def progress(self) -> dict[str, Any]:
        """Returns the run's progress; None for unknown values.

        Rows are the slice's, all else is this run's. Rates count from the first request, recent rates over
        the last `RECENT_SECONDS`, of a worker over those in which it had a request; `eta_s` uses the recent
        one, once rows have come for as long as the first took. Seconds are `Report`'s; `first_row_s` counts
        from the run's start, and `longest_row_s` is that of a row in the engine. `busy` is the share of the
        time in which a worker had a request, mean over the workers; `least_busy` is the lowest. The rest are
        percentages (`Utilisation`).
        """
        elapsed = time.time() - self._first_request if self._first_request else None
        rate = self.finished_rows / elapsed if elapsed and elapsed > 0 else None
        recent = self._recent.rates()
        busy = self._busy_shares
        left = self.planned_rows - self.rows_done
        return {
            "rows": self.rows_done,
            "planned": self.planned_rows,
            "failed": self.failed_rows,
            "invalid_output": self.invalid_rows,
            **{name: self._counts.get(name) for name in _SHOWN},
            "rows_per_s": _rounded(rate),
            "tokens_per_s": _rounded(self.tokens / elapsed) if rate and elapsed else None,
            "recent_rows_per_s": _rounded(recent.rows),
            "recent_tokens_per_s": _rounded(recent.tokens),
            "worker_rows_per_s": _rounded(recent.rows_of_worker),
            "longest_row_s": _rounded(self._longest_row_s),
            "eta_s": _rounded(left / (recent.rows or rate)) if rate and self._is_steady else None,
            "elapsed_s": _rounded(time.time() - self.began),
            "queued_s": _rounded(self._queue_s),
            "engine_start_s": _rounded(self._engine_start_s),
            "first_row_s": _rounded(self._first_row - self.began) if self._first_row else None,
            "workers": self.workers,
            "busy": _rounded(self.mean_busy),
            "least_busy": _rounded(min(busy)) if busy else None,
            **self._utilisation().model_dump(),
        }

    @property
    def _is_steady(self) -> bool:
        if self._first_request is None or self._first_row is None:
            return False
        return time.time() - self._first_row >= max(_FILLING_S, self._first_row - self._first_request)

    def details(self) -> dict[str, Any]:
        """Returns the sections of a `Report`, as JSON, that are too large for log lines and heartbeats."""
        inference_s = self._inference_s
        if inference_s is None or self._first_request is None:
            return {"per_worker": None, "history": None}
        history = self._history.result(self._first_request)
        return {
            "per_worker": [share.model_dump() for share in _shares(self._work_by_worker, inference_s)],
            "history": history.model_dump(mode="json") if history is not None else None,
        }

    @property
    def mean_busy(self) -> float | None:
        """Share of the inference time in which a worker had a request, mean over the workers."""
        shares = self._busy_shares
        return sum(shares) / len(shares) if shares else None

    def report_sections(
        self,
        gpus_of: Callable[[int | None], float | None] = lambda workers: None,
        start: Mapping[str, float | None] | None = None,
        *,
        fewest: int | None = None,
    ) -> dict[str, Any]:
        """Returns the measured sections of a `Report`: seconds and rates of this run, all null when no row
        was left to answer.

        :param gpus_of: returns the GPUs of a number of workers; gets None when that number is unknown.
        :param start: seconds before the first request, by field of `StartupSeconds`.
        :param fewest: workers that began together, where more may have come with time.
        """
        inference_s, busy = self._inference_s, self._busy_shares
        gpus = gpus_of(self.workers)
        startup = StartupSeconds(**{n: _rounded(s) for n, s in start.items()}) if start is not None else None
        return {
            "seconds": Seconds(
                start=startup,
                engine_start=_rounded(self._engine_start_s),
                inference=_rounded(inference_s),
                publish=_rounded(self._publish_s),
            ),
            "throughput": Throughput(
                rows_per_s=_rounded(self.finished_rows / inference_s) if inference_s else None,
                input_tokens_per_s=_rate(self._counts.get("input_tokens"), inference_s),
                output_tokens_per_s=_rate(self._counts.get("output_tokens"), inference_s),
                tokens_per_s_per_gpu=_rate(self.tokens, (inference_s or 0) * (gpus or 0)),
            ),
            "utilisation": self._utilisation(),
            "balance": Balance(
                workers=self.workers,
                max_over_mean=_rounded(max(busy) * len(busy) / sum(busy)) if any(busy) else None,
            ),
            "gpu_seconds": _rounded(self._gpu_seconds(gpus, fewest) if inference_s else None),
            **self.details(),
        }

    @property
    def rows_done(self) -> int:
        """Rows of the slice that are answered or have failed."""
        return min(self.resumed_rows + self.finished_rows, self.planned_rows)  # retried rows count again

    @property
    def workers(self) -> int | None:
        """How many have answered."""
        return len(self._work_by_worker) or None

    def _gpu_seconds(self, gpus: float | None, fewest: int | None) -> float | None:
        """Returns the seconds from when the engine began to start until its last row, without those of
        waiting for room, times its GPUs."""
        if not gpus or self._last_row is None:
            return None
        began = self.began + self._queue_s
        came = [work.since for work in self._work_by_worker.values()]
        delay_s = mean_delay(began, came, len(came) if fewest is None else fewest)
        held_s = self._last_row - began - self._later_queue_s - delay_s
        return max(held_s, 0.0) * gpus

    def _utilisation(self) -> Utilisation:
        usage = self._node_usage.utilisation()
        return usage.model_copy(update={"flops_share": self._flops_share})

    @property
    def _flops_share(self) -> float | None:
        """Percent of what the GPUs of all workers do at most; None where a card or a row is unknown."""
        names = [self._node_usage.gpu_names.get(gpu) for gpu in self._held_gpus]
        cards = [card_of(name) for name in names if name is not None]
        known = [card for card in cards if card is not None]
        if not self._operations or self._work is None or not known or len(known) < len(names):
            return None
        peak = sum(map(self._work.peak, known))
        return _rounded(100 * self._operations / peak / (self._inference_s or math.inf))

    @property
    def tokens(self) -> int:
        """In and out, of this run."""
        return self._counts.get("input_tokens", 0) + self._counts.get("output_tokens", 0)

    @property
    def _inference_s(self) -> float | None:
        if self._first_request is None or self._last_row is None:
            return None
        return max(self._last_row - self._first_request, 1e-6)

    @property
    def _engine_start_s(self) -> float | None:
        return self._first_request - self.began - self._queue_s if self._first_request else None

    @property
    def _busy_shares(self) -> list[float]:
        inference_s = self._inference_s
        return [work.seconds / inference_s for work in self._work_by_worker.values()] if inference_s else []


class Totals(NamedTuple):
    """Of a run so far. `worker_s`: seconds in which a worker had a request, summed over the workers."""

    rows: int
    tokens: int
    worker_s: float


class Rates(NamedTuple):
    """Per second; None while they are unknown. `rows_of_worker`: of one, while it has requests."""

    rows: float | None
    tokens: float | None
    rows_of_worker: float | None


class RecentRates:
    """Over the last `RECENT_SECONDS`, from totals over time."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, Totals]] = deque()

    def add(self, start: float, now: float, totals: Totals) -> None:
        """:param start: the time at which all totals were 0."""
        if not self._totals:
            self._totals.append((start, Totals(0, 0, 0.0)))
        self._totals.append((now, totals))
        while self._totals[1][0] <= now - RECENT_SECONDS:
            self._totals.popleft()

    def rates(self) -> Rates:
        if not self._totals or self._totals[-1][0] <= self._totals[0][0]:
            return Rates(None, None, None)
        (start, before), (stop, now) = self._totals[0], self._totals[-1]
        rows, worker_s = now.rows - before.rows, now.worker_s - before.worker_s
        return Rates(
            rows / (stop - start),
            (now.tokens - before.tokens) / (stop - start),
            rows / worker_s if worker_s > 0 else None,
        )


class _Work:
    """A worker's rows, and seconds in which it had at least one request, from groups in roughly the order of
    finishing."""

    def __init__(self) -> None:
        self.rows = 0
        self.seconds = 0.0
        #: Epoch seconds.
        self.since = math.inf
        self._until = 0.0

    def add(self, start: float, stop: float, rows: int) -> None:
        self.rows += rows
        self.since = min(self.since, start)
        self.seconds += max(0.0, stop - max(start, self._until))
        self._until = max(self._until, stop)


def _shares(work_by_worker: Mapping[str, _Work], inference_s: float) -> list[WorkerShare]:
    """The busiest workers first; of too many, only the busiest and the idlest."""
    shares = [
        WorkerShare(name=name, rows=work.rows, busy_share=round(work.seconds / inference_s, 3))
        for name, work in work_by_worker.items()
    ]
    shares.sort(key=lambda share: (-share.busy_share, share.name))
    half = MOST_WORKERS // 2
    return shares if len(shares) <= MOST_WORKERS else shares[:half] + shares[-half:]


def _rate(tokens: int | None, seconds: float | None) -> float | None:
    return _rounded(tokens / seconds) if seconds and tokens else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
