"""When a row in a living engine is overdue, by the pace of the rows that finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

#: A row may take so many times what the slowest of the recent rows would have taken, and at least so long.
_SLACK = 4.0
_LEAST_SECONDS = 120.0
_RECENT_ROWS = 2048
#: Of an answer: shorter ones say nothing about the pace.
_FEWEST_TOKENS = 16


class RowDeadlines:
    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT_ROWS)

    def add(self, engine_seconds: Sequence[float | None], output_tokens: Sequence[int | None]) -> None:
        """Learns from finished rows; null where the engine does not tell."""
        for seconds, tokens in zip(engine_seconds, output_tokens, strict=True):
            if seconds is not None and tokens is not None:
                self._recent.append((seconds, seconds / max(tokens, _FEWEST_TOKENS)))

    def seconds(self) -> tuple[float, float] | None:
        """Returns seconds, and seconds per token of max_tokens, within which a row should have finished; None
        while nothing has. The first cover the wait for a place in the engine."""
        if not self._recent:
            return None
        longest = max(seconds for seconds, _ in self._recent)
        slowest = max(per_token for _, per_token in self._recent)
        return max(_LEAST_SECONDS, _SLACK * longest), _SLACK * slowest
