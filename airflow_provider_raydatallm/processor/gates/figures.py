"""The figures that gates look at, from reports of slices. Pure."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raydatallm.contract.spec.gate import OF_LABEL

#: A version's report, as its commit holds it.
Stored = Mapping[str, Any]


class Figure(ABC):
    """One figure of a slice."""

    @abstractmethod
    def of(self, report: Stored) -> float | None:
        """Returns None where the report does not tell it."""

    def against(self, report: Stored, history: Sequence[Stored]) -> float | None:
        """How it changed: by default the difference from the median."""
        now, before = self.of(report), self._known(history)
        return None if now is None or not before else abs(now - statistics.median(before))

    def _known(self, history: Sequence[Stored]) -> list[float]:
        return [value for value in map(self.of, history) if value is not None]


class Rows(Figure):
    def of(self, report: Stored) -> float | None:
        return float(report["counts"]["planned"])

    def against(self, report: Stored, history: Sequence[Stored]) -> float | None:
        now, before = self.of(report), self._known(history)
        usual = statistics.median(before) if before else 0
        return now / usual if now is not None and usual else None


class ShareOfRows(Figure):
    def __init__(self, counter: str) -> None:
        self._counter = counter

    def of(self, report: Stored) -> float | None:
        counts = report["counts"]
        counted = counts.get(self._counter)
        return None if counted is None else counted / max(counts["planned"], 1)


class ShareOfLabel(Figure):
    """Of the answers. A label that is not among those that a report names is rarer than all of them."""

    def __init__(self, label: str) -> None:
        self._label = label

    def of(self, report: Stored) -> float | None:
        shares = _label_shares(report)
        return None if shares is None else shares.get(self._label, 0.0)


class TopLabel(Figure):
    def of(self, report: Stored) -> float | None:
        shares = _label_shares(report)
        return None if shares is None else max(shares.values())


class Labels(Figure):
    """The shares of all labels, by their total variation from those of earlier slices: from 0 to 1."""

    def of(self, report: Stored) -> float | None:
        return None

    def against(self, report: Stored, history: Sequence[Stored]) -> float | None:
        now = report.get("labels")
        before: Counter[str] = sum((Counter(h.get("labels") or {}) for h in history), Counter())
        if not now or not before:
            return None
        one, other = sum(now.values()), before.total()
        moved: float = sum(abs(now.get(n, 0) / one - before[n] / other) for n in now.keys() | before.keys())
        return moved / 2


def figure_of(name: str) -> Figure:
    """:param name: of a gate."""
    others: Mapping[str, Figure] = {"rows": Rows(), "top_label": TopLabel(), "labels": Labels()}
    if name.startswith(OF_LABEL):
        return ShareOfLabel(name.removeprefix(OF_LABEL))
    return others.get(name) or ShareOfRows(name)


def _label_shares(report: Stored) -> dict[str, float] | None:
    labels, answered = report.get("labels"), report["counts"]["succeeded"]
    return {name: rows / answered for name, rows in labels.items()} if labels and answered else None
