"""What a gate said of a slice."""

from __future__ import annotations

from typing import Literal

from airflow_provider_raydatallm.contract.base import Contract

Verdict = Literal["passed", "warned", "failed", "held", "unknown"]


class GateVerdict(Contract):
    """
    value: of the figure, or of its change; None where it is not known, or a ratio to a median of 0.
    figure: itself, where that is a number, also where its change counts.
    slices: how many earlier ones it was compared with: those that tell the figure.
    verdict: `unknown` where nothing is known, as of labels that are none, or with fewer than three slices
        before: it stops nothing, unless the gate leaves the slice to a person, by which it is `held`. An own
        check that gives no value has `failed`, unless it warns or holds.
    """

    of: str
    value: float | None = None
    figure: float | None = None
    max: float | None = None
    min: float | None = None
    against: int | None = None
    slices: int | None = None
    verdict: Verdict

    @property
    def has_passed(self) -> bool:
        return self.verdict == "passed"

    def __str__(self) -> str:
        since = f" against {self.slices} slice(s)" if self.slices is not None else ""
        if self.value is None and self.figure is not None and self.verdict in ("failed", "warned"):
            return f"{self.of}{since} is {_plain(self.figure)}, and their median 0"
        if self.value is None:
            return f"{self.of}{since} is not known"
        told = ""
        if self.max is not None and self.value > self.max:
            told = f", above max {_plain(self.max)}"
        elif self.min is not None and self.value < self.min:
            told = f", below min {_plain(self.min)}"
        return f"{self.of}{since} is {_plain(self.value)}{told}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
