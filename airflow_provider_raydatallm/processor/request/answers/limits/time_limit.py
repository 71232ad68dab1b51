"""How long checks of an answer may take: a model, or who steers it, can write one that takes without end."""

from __future__ import annotations

import threading


class TimeLimit:
    """Of a thread's CPU time, for each row. A row that takes all of it halves what later ones have, so that
    many such rows take seconds in all. Thread-safe."""

    def __init__(self, first_s: float, least_s: float) -> None:
        self._limit_s, self._least_s = first_s, least_s
        self._row = threading.local()

    def start_row(self) -> None:
        self._row.left_s = self._limit_s

    @property
    def left_s(self) -> float:
        left_s: float = self._row.left_s
        return left_s

    def take(self, seconds: float) -> None:
        """:raises TimeoutError: when no time is left."""
        self._row.left_s -= seconds
        if self._row.left_s <= 0:
            self._limit_s = max(self._least_s, self._limit_s / 2)
            raise TimeoutError
