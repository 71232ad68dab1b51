"""A server that takes every connection and never answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stalled_server() -> Iterator[str]:
    """Yields its address. The system accepts its connections, and nobody reads them."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
