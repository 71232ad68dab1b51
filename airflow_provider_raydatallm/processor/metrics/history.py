"""How a run went over time, in constant memory: rows that finished, and how busy GPUs and CPUs were.

Spans lie on a grid of epoch seconds, so that samples may come in any order and from several nodes. When the
first and the last span are too far apart, each two become one: the result is that of the final width from the
beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from airflow_provider_raydatallm.contract.result.report import MOST_SPANS, History

#: Width of a span to begin with: two samples of a node.
_WIDTH_S = 1.0

#: Values by span.
_Sums = defaultdict[int, float]


class RunHistory:
    def __init__(self) -> None:
        self._width_s = _WIDTH_S
        self._rows = _Sums(float)
        self._gpus, self._cpus = _Means(), _Means()
        self._first: int | None = None
        self._last = 0

    def add_rows(self, time: float, rows: int) -> None:
        """:param time: epoch seconds, as of samples."""
        span = self._span_of(time)
        self._rows[span] += rows

    def add_sample(self, time: float, cpu: float, gpus: Iterable[float]) -> None:
        """:param cpu: percent of the node's CPUs that were busy, and so `gpus` of each GPU that counts."""
        span = self._span_of(time)
        self._cpus.add(span, cpu)
        for busy in gpus:
            self._gpus.add(span, busy)

    def result(self, start: float) -> History | None:
        """Returns what is known; None where nothing is.

        :param start: epoch seconds of the first request.
        """
        if self._first is None:
            return None
        spans = range(self._first, self._last + 1)
        return History(
            span_s=self._width_s,
            offset_s=round(self._first * self._width_s - start, 3),
            rows=tuple(int(self._rows[span]) for span in spans),
            gpu_busy=self._gpus.of(spans),
            cpu_busy=self._cpus.of(spans),
        )

    def _span_of(self, time: float) -> int:
        span = int(time // self._width_s)
        first = span if self._first is None else min(span, self._first)
        last = max(span, self._last) if self._first is not None else span
        while last - first >= MOST_SPANS:
            self._width_s *= 2
            span, first, last = span // 2, first // 2, last // 2
            self._rows = _halved(self._rows)
            self._gpus.halve()
            self._cpus.halve()
        self._first, self._last = first, last
        return span


class _Means:
    """The mean of the values in each span."""

    def __init__(self) -> None:
        self._sums, self._values = _Sums(float), _Sums(float)

    def add(self, span: int, value: float) -> None:
        self._sums[span] += value
        self._values[span] += 1

    def halve(self) -> None:
        self._sums, self._values = _halved(self._sums), _halved(self._values)

    def of(self, spans: Iterable[int]) -> tuple[float | None, ...] | None:
        """None in a span without values, and instead of spans that all are."""
        if not self._values:
            return None
        return tuple(
            round(self._sums[span] / self._values[span], 1) if span in self._values else None
            for span in spans
        )


def _halved(sums: _Sums) -> _Sums:
    """Each two spans as one."""
    halved = _Sums(float)
    for span, value in sums.items():
        halved[span // 2] += value
    return halved
