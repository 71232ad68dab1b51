"""Places in an engine that slices have by turns, so that a small one does not wait behind a large one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class FairShare:
    """A number of places. When they are all taken, who waits gets them in rotation: one to each user."""

    def __init__(self, places: int) -> None:
        self._free = places
        #: Of each user that waits, the next in turn first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def place(self, user: str) -> AsyncIterator[None]:
        await self._take(user)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, user: str) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had been given the place already
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._waiting:
            user = next(iter(self._waiting))
            turns = self._waiting.pop(user)
            turn = turns.popleft()
            if turns:
                self._waiting[user] = turns  # now the last in turn
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
