"""Waiting for what happens elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def wait_for(what: Callable[[], Any], seconds: float = 300) -> Any:
    """Returns the first true value of `what`, asked ten times a second."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def in_thread(ask: Callable[..., Any], results: list[Any], **arguments: Any) -> threading.Thread:
    """Runs `ask(**arguments)` in a thread; its result, or the error it raises, is appended to `results`."""

    def run() -> None:
        try:
            results.append(ask(**arguments))
        except Exception as e:
            results.append(e)

    thread = threading.Thread(target=run, daemon=True)  # a test that fails does not wait for it
    thread.start()
    return thread
