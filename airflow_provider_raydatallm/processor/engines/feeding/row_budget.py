"""How many rows a feeder may have in each worker: its share of the worker's budget.

A worker's budget is what its engine needs to be always full: the rows that it runs at once, and as many that
wait. All feeders together fill it. A feeder uses a few of the workers, so that calls and groups stay large
however many there are, and its share follows the numbers of ready workers and of feeders with rows to send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: Workers that a feeder uses, where there are enough feeders for all: more would make its groups smaller.
_WORKERS_OF_A_FEEDER = 4


@dataclass(frozen=True)
class RowBudget:
    """rows, tokens: in flight in each worker, at most. Tokens bound its memory where prompts are long.
    batches: instead of rows, where a job fixes them; a batch's place is free when its last row finished."""

    rows: int
    tokens: int
    batches: int | None = None

    def share(self, users: float) -> RowBudget:
        """The share of one of so many feeders."""
        batches = max(1, round(self.batches / users)) if self.batches is not None else None
        return RowBudget(math.ceil(self.rows / users), math.ceil(self.tokens / users), batches)


def workers_of_feeder(ready: Sequence[T], feeder: int, feeders: int) -> Sequence[T]:
    """The workers that a feeder uses: neighbours on a ring of the ready ones, with all of them used equally.

    :param feeder: its place among them.
    """
    workers, feeders = len(ready), max(1, feeders)
    # Each worker has at least two feeders where possible, so that none idles while one of them is busy.
    used = min(workers, max(_WORKERS_OF_A_FEEDER, math.ceil(2 * workers / feeders)))
    first = (feeder % feeders) * workers // feeders
    return [ready[(first + i) % workers] for i in range(used)]
