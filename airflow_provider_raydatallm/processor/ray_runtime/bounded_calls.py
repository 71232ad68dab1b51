"""Waits that end: a time limit for calls that have none of their own, and `ray.wait` that signals can end.

Ray Serve's client and parts of Ray's state API wait for ever for a process that is paused or hangs. Such a
call runs in a thread of its own, which is left behind when the time is over.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ray import ObjectRef

T = TypeVar("T")
_POLL_SECONDS = 0.05


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


def wait_for_refs(
    refs: Sequence[ObjectRef[Any]], *, num_returns: int, timeout_s: float | None
) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
    """`ray.wait`, for the main thread. An exception that a signal raises within `ray.wait` itself is ignored,
    or becomes a SystemError.

    :param timeout_s: None: no limit but that of whoever sends the signal.
    """
    import ray

    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        done, left = ray.wait(list(refs), num_returns=num_returns, timeout=0)
        if len(done) >= num_returns or time.monotonic() >= deadline:
            return done, left
        time.sleep(_POLL_SECONDS)
