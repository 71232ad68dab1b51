"""Round-robin request slots of an engine, so that a large slice cannot starve a small one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class FairShare:
    """A number of slots. When all are taken, waiting users get free ones in rotation."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        #: Waiting requests by user, the next user first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def slot(self, user: str) -> AsyncIterator[None]:
        await self._acquire(user)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, user: str) -> None:
        if self._free > 0:
            self._free -= 1
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        while self._waiting:
            user = next(iter(self._waiting))
            requests = self._waiting.pop(user)
            granted = requests.popleft()
            if requests:
                self._waiting[user] = requests  # moves the user to the end
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1
