"""Noticing that nothing moves any more. A dead actor in a fixed pool, CPUs that are all taken, a GPU that
does not come back: Ray waits for ever in each of them, without a word."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_raydatallm.contract.errors import SliceError


class StallWatch:
    """Raises when no row finished for too long; the time in which an engine loads its model is not
    counted."""

    def __init__(
        self,
        rows: int,
        timeout: float,
        loads: Callable[[], bool],
        waits: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param loads: whether an engine that is not there yet is on its way, asked when nothing moves.
        :param waits: what waits for what, asked before this raises."""
        self._left = rows
        self._timeout = timeout
        self._loads = loads
        self._waits = waits
        self._clock = clock
        self._since = clock()
        self._started = False

    def observe(self, finished: int, started: bool) -> None:
        """
        :param finished: rows since the last look, by whatever answered them.
        :param started: whether an engine is there: it said so, or has answered.
        :raises SliceError: of kind `engine`, which is worth a retry."""
        self._left -= finished
        if finished or (started and not self._started):
            self._since = self._clock()
        self._started = self._started or started
        if self._left <= 0 or self._clock() - self._since < self._timeout:
            return
        if not self._started and self._loads():
            self._since = self._clock()
            return
        raise stall_error(
            f"no row finished for {self._timeout:g} s", f"{self._left:,} rows wait", self._waits()
        )


def stall_error(seen: str, left: str, waits: str) -> SliceError:
    return SliceError(
        f"{seen} (stall_timeout) while {left}{f'. {waits}' if waits else ''}. Finished rows are kept, and a "
        "retry goes on with the others. Work that takes longer than that needs a higher stall_timeout",
        kind="engine",
    )
