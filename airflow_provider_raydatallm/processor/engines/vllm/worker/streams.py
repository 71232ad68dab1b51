"""Carries a worker's finished rows out to its feeders.

A feeder sends rows in many small calls, and its newest one has the answers to all of them: a call ends as
soon as the next begins, which takes over its unfinished rows. So a feeder reads one stream of a worker, whose
groups are large, however many calls have a row left. Pure asyncio: it knows neither Ray nor vLLM.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any

#: Shortest and longest time between two groups; the longest when few rows finish.
GROUP_SECONDS = 0.25
_SLOW_GROUP_SECONDS = 1.0
#: A group of this many rows, or of this share of those that run, does not wait for more.
_GROUP_ROWS = 16
_GROUP_SHARE = 1 / 8

#: A row's id, and the columns of its answer.
FinishedRow = tuple[int, dict[str, Any]]


class RowStreams:
    """The streams of a worker, one for each feeder."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._idle_since = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds for which there was no row."""
        return 0.0 if self._streams else time.monotonic() - self._idle_since

    async def groups(
        self, feeder: str, rows: Iterable[tuple[int, Callable[[], Coroutine[Any, Any, dict[str, Any]]]]]
    ) -> AsyncGenerator[list[FinishedRow]]:
        """Starts rows and yields groups of the feeder's finished ones until none is left, or its next call
        takes over. If the feeder is gone, its rows are cancelled.

        :param rows: each row's id, and what generates its answer.
        """
        stream = self._streams.setdefault(feeder, _Stream())
        call = stream.take_over()
        for row, generate in rows:
            stream.start(row, generate())
        try:
            async for group in stream.groups(call):
                yield group
        finally:
            if stream.newest_call == call:
                stream.cancel_all()
                del self._streams[feeder]
                self._idle_since = time.monotonic()

    def cancel(self, feeder: str, rows: Iterable[int]) -> None:
        """Cancels rows whose answers nobody needs any more."""
        if (stream := self._streams.get(feeder)) is not None:
            for row in rows:
                stream.cancel(row)


class _Stream:
    def __init__(self) -> None:
        self.newest_call = 0
        self._running: dict[int, asyncio.Task[None]] = {}
        self._finished: list[FinishedRow] = []
        self._changed = asyncio.Event()
        self._last_group = time.monotonic()

    def take_over(self) -> int:
        self.newest_call += 1
        self._changed.set()
        return self.newest_call

    def start(self, row: int, answer: Coroutine[Any, Any, dict[str, Any]]) -> None:
        async def run() -> None:
            columns = await answer
            self._running.pop(row, None)
            self._finished.append((row, columns))
            self._changed.set()

        self._running[row] = asyncio.create_task(run())

    def cancel(self, row: int) -> None:
        if (task := self._running.pop(row, None)) is not None:
            task.cancel()
            self._changed.set()

    def cancel_all(self) -> None:
        for row in list(self._running):
            self.cancel(row)

    async def groups(self, call: int) -> AsyncGenerator[list[FinishedRow]]:
        while self.newest_call == call and (self._running or self._finished):
            if not self._finished:
                self._changed.clear()
                await self._changed.wait()
                continue
            await self._wait_for_more(call)
            if self.newest_call == call and self._finished:
                group, self._finished = self._finished, []
                self._last_group = time.monotonic()
                yield group

    async def _wait_for_more(self, call: int) -> None:
        """Waits until a group is worth sending."""
        began = self._last_group
        while self.newest_call == call and self._running:
            waited = time.monotonic() - began
            enough = max(_GROUP_ROWS, int((len(self._running) + len(self._finished)) * _GROUP_SHARE))
            is_large = len(self._finished) >= enough
            if waited >= _SLOW_GROUP_SECONDS or (is_large and waited >= GROUP_SECONDS):
                return
            pause = GROUP_SECONDS - waited if waited < GROUP_SECONDS else GROUP_SECONDS / 5
            await asyncio.sleep(max(0.01, pause))
