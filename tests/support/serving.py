from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

Server = TypeVar("Server", bound=socketserver.BaseServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serves in a thread until the block ends, also by an error: a thread whose socket is closed under it
    spins for as long as the tests run."""
    with server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def serving_in_own_loop(
    serve: Callable[[threading.Event, asyncio.Event], Coroutine[None, None, None]],
) -> Iterator[None]:
    """Runs a server in a thread and an event loop of its own, until the block ends.

    :param serve: sets the first event when it has started, and ends when the second one is set.
    """
    started, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(started, stop),), daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
