"""A time limit for calls that have none of their own.

Ray Serve's client and parts of Ray's state API wait for ever for a process that is paused or hangs. Such a
call runs in a thread of its own, which is left behind when the time is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Generic, TypeVar

T = TypeVar("T")


def start_call(function: Callable[[], T]) -> futures.Future[T]:
    """Calls a function in a thread that does not keep the process alive."""
    call: futures.Future[T] = futures.Future()

    def run() -> None:
        try:
            call.set_result(function())
        except BaseException as e:
            call.set_exception(e)

    threading.Thread(target=run, name="ray-llm-call", daemon=True).start()
    return call


def call_within(timeout_s: float, function: Callable[[], T]) -> T:
    """
    :raises TimeoutError: when the function does not return in time.
    """
    return start_call(function).result(timeout_s)


class Poll(Generic[T]):
    """Repeats a call. At most one is on its way, so that calls that hang do not pile up."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._call: futures.Future[T] | None = None

    def news(self, timeout_s: float) -> T:
        """
        :raises TimeoutError: when the call that is on its way has not returned yet.
        """
        self._call = self._call or start_call(self._function)
        if not futures.wait([self._call], timeout_s).done:
            raise TimeoutError
        call, self._call = self._call, None
        return call.result()
