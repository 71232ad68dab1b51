"""When a GPU engine with continuous batching would finish its rows: vLLM's scheduler, without a model.

Rows wait until there is room, then their prompts are computed, as many tokens a step as the budget has, and
each later step adds a token to every running row. Time is virtual, in seconds.

The defaults are those of an 8B model in bfloat16 on one H200 with `max_num_seqs=1024`. They reproduce three
measured rates of vLLM's offline engine: 417 rows/s (81 tokens in, 16 out), 75 rows/s (339 in, 109 out) and,
with prompts of which the prefix cache has 92%, 985 rows/s (73 in, 16 out).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pace:
    """
    max_num_seqs: rows that run at once.
    max_num_batched_tokens: tokens of a step: prompts' and one of each running row.
    kv_tokens: room for prompts and answers of running rows. A full one makes the newest row start again.
    cached: share of a prompt that is in the prefix cache, and is not computed.
    step_s, row_s, kv_token_s, prompt_token_s: seconds of a step; and those that are added by each running
        row, by each token of running rows, and by each computed token of prompts.
    """

    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 16_384
    kv_tokens: int = 800_000
    cached: float = 0.0
    step_s: float = 6e-3
    row_s: float = 49e-6
    kv_token_s: float = 23e-9
    prompt_token_s: float = 18.4e-6


@dataclass(eq=False, slots=True)
class PacedRow:
    """A row's tokens, and where it stands."""

    prompt: int
    answer: int
    arrived: float = 0.0
    uncomputed: int = 0
    generated: int = 0
    last_step: int = field(default=0, repr=False)


class PacedBatching:
    """Rows in, finished rows out."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._waiting: deque[PacedRow] = deque()
        self._running: dict[PacedRow, None] = {}  # the newest last
        self._ends: list[tuple[int, int, PacedRow]] = []
        self._kv_tokens = 0
        self._steps = 0
        self._added = 0
        self.now = 0.0
        self._step_end: float | None = None

    def add(self, row: PacedRow, arrived: float = 0.0) -> None:
        row.arrived = arrived
        row.uncomputed = round(row.prompt * (1 - self._pace.cached))
        self._waiting.append(row)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def next_end(self) -> float:
        """Returns when the step that is now running ends."""
        if self._step_end is None:
            if not self._running and self._waiting:
                self.now = max(self.now, self._waiting[0].arrived)
            self._step_end = self.now + self._begin_step()
        return self._step_end

    def end_step(self) -> list[PacedRow]:
        """Goes to the end of the step that is now running; returns the rows that finish with it."""
        self.now, self._step_end = self.next_end(), None
        self._steps += 1
        self._kv_tokens += len(self._running)
        finished = []
        while self._ends and self._ends[0][0] <= self._steps:
            last_step, _, row = heapq.heappop(self._ends)
            if row in self._running and row.last_step == last_step:  # it may have started again since
                del self._running[row]
                self._kv_tokens -= row.prompt + row.answer
                finished.append(row)
        return finished

    def _begin_step(self) -> float:
        """Makes and gives room; returns the step's seconds."""
        pace = self._pace
        while self._kv_tokens + len(self._running) > pace.kv_tokens and len(self._running) > 1:
            self._preempt()
        budget = tokens = pace.max_num_batched_tokens - len(self._running)
        while budget > 0 and self._waiting and len(self._running) < pace.max_num_seqs:
            row = self._waiting[0]
            kept = row.prompt + row.generated
            has_room = self._kv_tokens + len(self._running) + kept < pace.kv_tokens or not self._running
            if row.arrived > self.now or not has_room:
                break
            computed = min(budget, row.uncomputed)
            row.uncomputed -= computed
            budget -= max(computed, 1)
            if row.uncomputed:
                break
            self._start(self._waiting.popleft(), kept)
        return (
            pace.step_s
            + pace.row_s * len(self._running)
            + pace.kv_token_s * self._kv_tokens
            + pace.prompt_token_s * (tokens - budget)
        )

    def _start(self, row: PacedRow, kept: int) -> None:
        """The step that computes the last of a prompt gives its first token."""
        self._running[row] = None
        self._kv_tokens += kept
        row.last_step = self._steps + row.answer - row.generated
        self._added += 1
        heapq.heappush(self._ends, (row.last_step, self._added, row))

    def _preempt(self) -> None:
        row, _ = self._running.popitem()
        row.generated = row.answer - (row.last_step - self._steps)
        self._kv_tokens -= row.prompt + row.generated
        row.uncomputed = row.prompt + row.generated
        self._waiting.appendleft(row)


def offline_seconds(rows: Iterable[PacedRow], pace: Pace) -> float:
    """Returns the seconds for rows that are all there at once, in their order, as with vLLM's `LLM.chat`."""
    batching = PacedBatching(pace)
    for row in rows:
        batching.add(row)
    while not batching.is_idle:
        batching.end_step()
    return batching.now
