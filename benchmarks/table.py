"""Prints what a case measured: figures beside their goals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

_began = time.monotonic()


class Figure(NamedTuple):
    """`met`: whether the goal is met; None for a figure without a goal."""

    what: str
    measured: str
    goal: str = ""
    met: bool | None = None


def show(figures: Sequence[Figure]) -> bool:
    """Prints the table; returns whether every goal is met."""
    verdicts = {None: "", True: "met", False: "NOT MET"}
    print_rows(["", "measured", "goal", ""], [[f.what, f.measured, f.goal, verdicts[f.met]] for f in figures])
    return all(f.met is not False for f in figures)


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    print()
    for row in (header, ["-" * w for w in widths], *rows):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |")
    print(flush=True)


def say(text: str) -> None:
    """Prints a line of progress with the seconds since the benchmarks began."""
    print(f"  {time.monotonic() - _began:6.0f} s  {text}", flush=True)
