"""HTTP clients that the hooks of one event loop share.

A triggerer that waits for a thousand jobs of one cluster needs one client: making one costs 20 ms of CPU, and
each has connections of its own. Few requests of it are under way at once, as a pool of connections looks
through all of its requests at each turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import httpx

    from airflow_provider_raydatallm.hooks.connection import RaySettings

_AT_ONCE = 16

_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[RaySettings, SharedClient]]]
_of_loops = WeakKeyDictionary()


class SharedClient:
    def __init__(self, settings: RaySettings) -> None:
        import httpx

        # The turns bound the connections, and those that are read for as long as something comes come on top.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(**settings.client_options(), limits=limits)
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @classmethod
    def of(cls, settings: RaySettings) -> SharedClient:
        """The running event loop's client for these settings."""
        clients = _of_loops.setdefault(asyncio.get_running_loop(), [])
        for known, client in clients:
            if known == settings:
                return client
        clients.append((settings, cls(settings)))
        return clients[-1][1]

    async def request(self, **arguments: object) -> httpx.Response:
        async with self._turns:
            return await self._client.request(**arguments)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def stream(self, **arguments: object) -> AsyncIterator[httpx.Response]:
        async with self._client.stream(**arguments) as answer:  # type: ignore[arg-type]
            yield answer

    async def aclose(self) -> None:
        await self._client.aclose()


async def close_clients() -> None:
    """Close the running event loop's clients, before it ends."""
    for _, client in _of_loops.pop(asyncio.get_running_loop(), []):
        await client.aclose()
