"""The figures that gates look at. Pure."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from airflow_provider_raydatallm.contract.spec.gate import OF_EMPTY, OF_MEDIAN, OF_SPREAD, PROBES, Gate
from airflow_provider_raydatallm.processor.gates import spread
from airflow_provider_raydatallm.processor.gates.facts import Facts


class Figure(ABC):
    """One figure of a slice."""

    @abstractmethod
    def of(self, slice_: Facts) -> float | None:
        """Returns None where it is not known."""

    def least(self, slice_: Facts) -> float:
        """What it is at least where it is not known."""
        return 0.0

    def is_told_by(self, slice_: Facts) -> bool:
        """Whether a change from this slice can be known."""
        return self.of(slice_) is not None

    def is_comparable(self, slice_: Facts, before: Facts) -> bool:
        """Whether a change since that slice can be known."""
        return self.is_told_by(before)

    def against(self, slice_: Facts, before: Sequence[Facts]) -> float | None:
        """How it changed: by default the difference from the median.

        :param slice_, before: those that tell it, of which there are some.
        """
        return abs((self.of(slice_) or 0) - self._median(before))

    def _median(self, slices: Sequence[Facts]) -> float:
        return statistics.median(self.of(one) or 0 for one in slices)


class Fact(Figure):
    def __init__(self, fact: Callable[[Facts], float | None]) -> None:
        self._fact = fact

    def of(self, slice_: Facts) -> float | None:
        return self._fact(slice_)


class Number(Fact):
    """What may be of any size: its change is a ratio."""

    def against(self, slice_: Facts, before: Sequence[Facts]) -> float | None:
        now, usual = self.of(slice_) or 0, self._median(before)
        if not usual:  # which is beyond every limit, but where there still is nothing
            return math.copysign(math.inf, now) if now else 1.0
        return now / usual


class OfProbe(Fact):
    """The share that rows of a probe tell: of other ones it says nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda slice_: slice_.probes[name].gated if name in slice_.probes else None)
        self._name = name

    def is_comparable(self, slice_: Facts, before: Facts) -> bool:
        now, then = (facts.probes.get(self._name) for facts in (slice_, before))
        return now is not None and then is not None and now.hash == then.hash


class ShareOfRows(Figure):
    def __init__(self, counter: str) -> None:
        self._counter = counter

    def of(self, slice_: Facts) -> float | None:
        counted = slice_.counts.get(self._counter)
        return None if counted is None else counted / max(slice_.planned, 1)

    def least(self, slice_: Facts) -> float:
        return (slice_.known.get(self._counter) or 0) / max(slice_.planned, 1)


class ShareOfLabel(Figure):
    """Of the answers."""

    def __init__(self, label: str) -> None:
        self._label = label

    def of(self, slice_: Facts) -> float | None:
        shares = slice_.label_shares
        if shares is None:
            return None
        return shares.get(self._label, 0.0 if slice_.has_all_labels else None)


class TopLabel(Figure):
    def of(self, slice_: Facts) -> float | None:
        shares = slice_.label_shares
        return None if shares is None else max(shares.values(), default=0.0)


class Labels(Figure):
    """The shares of all labels, by their total variation from those of earlier slices: from 0 to 1."""

    def of(self, slice_: Facts) -> float | None:
        return None

    def is_told_by(self, slice_: Facts) -> bool:
        return slice_.has_all_labels and bool(slice_.counts["succeeded"])

    def against(self, slice_: Facts, before: Sequence[Facts]) -> float | None:
        now, then = self._shares([slice_]), self._shares(before)
        moved = sum(abs(now.get(name, 0) - then.get(name, 0)) for name in now.keys() | then.keys()) / 2
        return min(moved, 1.0) if now or then else None  # of several labels a row, more may move

    def _shares(self, slices: Sequence[Facts]) -> Mapping[str, float]:
        """Of the answers, one of which may have several or none."""
        labels = sum((Counter(one.labels) for one in slices), Counter[str]())
        answered = sum(one.counts["succeeded"] or 0 for one in slices)
        return {name: rows / answered for name, rows in labels.items()}


class Empty(Fact):
    """The share of the answers without a text in a column."""

    def __init__(self, column: str) -> None:
        super().__init__(lambda slice_: slice_.share_without_text(column))


class Median(Number):
    """Of a column's numbers, or of the lengths of its texts."""

    def __init__(self, column: str) -> None:
        super().__init__(lambda slice_: spread.median(slice_.spreads.get(column) or {}))


class Spread(Figure):
    """The same, all of them, by how far they moved from those of earlier slices."""

    def __init__(self, column: str) -> None:
        self._column = column

    def of(self, slice_: Facts) -> float | None:
        return None

    def is_told_by(self, slice_: Facts) -> bool:
        return bool(slice_.spreads.get(self._column))

    def against(self, slice_: Facts, before: Sequence[Facts]) -> float | None:
        then = sum((Counter(one.spreads[self._column]) for one in before), Counter[float]())
        return spread.stability_index(slice_.spreads[self._column], then)


def figure_of(gate: Gate) -> Figure:
    if gate.label is not None:
        return ShareOfLabel(gate.label)
    if (column := gate.column) is not None:
        kinds = {OF_EMPTY: Empty, OF_MEDIAN: Median, OF_SPREAD: Spread}
        return kinds[gate.of.removesuffix(column)](column)
    if gate.is_own_check:
        return Number(lambda slice_: slice_.checks.get(gate.of))
    others: Mapping[str, Figure] = {
        "rows": Number(lambda slice_: float(slice_.planned)),
        "output_tokens": Number(lambda slice_: slice_.output_tokens),
        "cost": Number(lambda slice_: slice_.cost.get("total")),
        "cost_per_1000_rows": Number(lambda slice_: slice_.cost.get("per_1000_rows")),
        **{name: OfProbe(name) for name in PROBES},
        "confidence": Fact(lambda slice_: slice_.confidence),
        "top_label": TopLabel(),
        "labels": Labels(),
    }
    return others.get(gate.of) or ShareOfRows(gate.of)
