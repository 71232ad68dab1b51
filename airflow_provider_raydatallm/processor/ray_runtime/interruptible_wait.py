"""Checks work in progress while the main thread waits for it.

Ray Data blocks its caller until the next block is there. What cannot wait that long (finished rows, a lost
lease, too many failed rows, a stuck engine) is checked in a thread. An error of the check ends the wait by a
signal, in the main thread, so that Ray Data shuts its pipeline down in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent import futures
from types import FrameType, TracebackType

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import start_call

_SIGNAL = signal.SIGUSR1


class _Interrupted(BaseException):
    """The check raised an error."""


class InterruptibleWait:
    """`with InterruptibleWait(check, interval_s, limit_s): wait()` calls `check` periodically; its error ends
    the wait, and so does a check that takes longer than `limit_s`.

    Only the main thread can be interrupted: in any other, the wait ends by itself before the error is raised.
    """

    def __init__(self, check: Callable[[], None], interval_s: float, limit_s: float) -> None:
        self._check = check
        self._interval_s = interval_s
        self._limit_s = limit_s
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._raised = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._in_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._in_main:
            self._previous_handler = signal.signal(_SIGNAL, self._interrupt)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:  # after this, nothing interrupts
            self._ended.set()
        self._thread.join()
        if self._in_main:
            signal.signal(_SIGNAL, self._previous_handler)
        # What was interrupted may have made another error of it: Ray makes a SystemError.
        if self._error is not None and (kind is None or self._raised):
            raise self._error from None

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s) and not self._raised:
            try:
                if self._error is None:
                    self._check_within_limit()
            except BaseException as e:
                self._error = e
            with self._lock:
                if self._error is not None and self._in_main and not self._ended.is_set():
                    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _check_within_limit(self) -> None:
        call = start_call(self._check)
        if not futures.wait([call], self._limit_s).done:
            raise SliceError(
                f"the run could not be checked for {self._limit_s:g} s: a part of Ray hangs", kind="engine"
            )
        call.result()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # Interrupts only the wait itself, once. Inside __enter__ the next signal interrupts; __exit__ raises
        # the error by itself.
        while frame is not None:
            if frame.f_code in (InterruptibleWait.__enter__.__code__, InterruptibleWait.__exit__.__code__):
                return
            frame = frame.f_back
        if not self._ended.is_set() and not self._raised:
            self._raised = True
            raise _Interrupted
