"""Many cases in a row, from a seed: counts, and the smallest case of each cause of a violation."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.oracle.check import Violation, check
from tests.oracle.counts import Counts
from tests.oracle.formats import Drawn, cases


@dataclass
class Findings:
    """:ivar examples: the first case of each cause."""

    counts: Counts = field(default_factory=Counts)
    causes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Drawn] = field(default_factory=dict)

    def check(self, drawn: Drawn) -> Violation | None:
        try:
            checked = check(drawn.case)
        except Violation as violation:
            self.counts.add("violated", violation.features)
            self.causes[violation.cause] += 1
            self.examples.setdefault(violation.cause, drawn)
            return violation
        self.counts.add(checked.outcome, checked.features)
        return None


def draw(name: str, number: int, start: int) -> list[Drawn]:
    """So many cases of a format."""
    found: list[Drawn] = []

    @seed(start)
    @settings(
        max_examples=number, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(name))
    def keep(drawn: Drawn) -> None:
        found.append(drawn)

    keep()
    return found


def run(name: str, number: int, start: int) -> Findings:
    """Judges so many cases of a format."""
    findings = Findings()
    for drawn in draw(name, number, start):
        findings.check(drawn)
    return findings


def explain(drawn: Drawn) -> str:
    """The simplest case of the cause for which the promise does not hold, and how to judge it again."""
    cause = cause_of(drawn)
    if cause is not None:
        drawn = shrink(drawn, cause)
    try:
        checked = check(drawn.case)
    except Violation as violation:
        return f"{drawn}\n{violation}\n"
    return f"{drawn}\n{checked.outcome}: {checked.message}\n"


def shrink(drawn: Drawn, cause: str, *, tries: int = 150) -> Drawn:
    """The simplest case of the same cause that so many tries find: its bytes become zero part by part, and
    then smaller one by one."""
    data, size = drawn.data, len(drawn.data)
    while size:
        for start in range(0, len(data), size):
            part = data[start : start + size]
            smaller = bytes(len(part)) if size > 1 or part < b"\x02" else bytes([part[0] // 2])
            candidate = data[:start] + smaller + data[start + size :]
            if candidate == data:
                continue
            simpler = Drawn(drawn.format, candidate)
            if repr(simpler.case) != repr(Drawn(drawn.format, data).case):  # else nothing reads that part
                tries -= 1
                if cause_of(simpler) != cause:
                    continue
            data = candidate
            if tries <= 0:
                return Drawn(drawn.format, data)
        size //= 2
    return Drawn(drawn.format, data)


def cause_of(
    drawn: Drawn, during: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
) -> str | None:
    """Why the promise does not hold for a case; None when it does."""
    try:
        check(drawn.case, during)
    except Violation as violation:
        return violation.cause
    return None
