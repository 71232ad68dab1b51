"""Looking at work in progress while this process waits for it.

Ray Data has its caller wait for blocks for as long as it takes. What must not wait (news of finished rows, a
lease that is lost, a slice that is hopeless, an engine that is stuck) is looked at in a thread, and what that
raises ends the wait as a signal does: in the main thread, so that Ray Data ends its pipeline in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

_SIGNAL = signal.SIGUSR1


class _Interrupted(BaseException):
    """The look raised."""


class InterruptibleWait:
    """`with Watch(look, seconds): wait()`: calls `look` every so often, and ends the wait by what it raises.

    Outside of the main thread, which alone can be interrupted, the wait goes on to its own end first.
    """

    def __init__(self, look: Callable[[], None], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._error: BaseException | None = None
        self._raised = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._in_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._in_main:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._turn:  # from here on nothing interrupts
            self._ended.set()
        self._thread.join()
        if self._in_main:
            signal.signal(_SIGNAL, self._before)
        if self._error is not None and (kind is None or kind is _Interrupted):
            raise self._error from None

    def _run(self) -> None:
        while not self._ended.wait(self._seconds) and not self._raised:
            try:
                if self._error is None:
                    self._look()
            except BaseException as e:
                self._error = e
            with self._turn:
                if self._error is not None and self._in_main and not self._ended.is_set():
                    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # Only the wait itself is to be interrupted, once: on the way into it the next signal does, and what
        # leaves it raises the error by itself.
        while frame is not None:
            if frame.f_code in (InterruptibleWait.__enter__.__code__, InterruptibleWait.__exit__.__code__):
                return
            frame = frame.f_back
        if not self._ended.is_set() and not self._raised:
            self._raised = True
            raise _Interrupted
