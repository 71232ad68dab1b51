"""Choices that hypothesis draws and shrinks, towards the first of their options.

Hypothesis draws one string of bytes a case, and plain functions choose by it. That costs a hundredth of as
many draws, and each case is a new one: hypothesis would make most of them by copying one draw over another.
Lanes are parts of the string for what is chosen in one place, so that a smaller choice here does not turn
everything behind it into something else. A lane that is used up chooses the first option.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """:ivar bad_texts: whether some texts are not UTF-8."""

    bad_texts = False

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at: Iterator[int] = iter(data)

    def lane(self, size: int) -> Dice:
        """Cuts a lane off the front of what has no lane yet."""
        lane, self._data = self._data[:size], self._data[size:]
        return Dice(bytes(lane))

    def upto(self, most: int) -> int:
        """A number from 0 to `most`, both included."""
        assert most < 256
        return next(self._at, 0) * (most + 1) >> 8

    def pick(self, options: Sequence[T]) -> T:
        return options[self.upto(len(options) - 1)]

    def chance(self, one_in: int) -> bool:
        """True once in so many cases; shrinks to False."""
        return self.upto(one_in - 1) == one_in - 1
