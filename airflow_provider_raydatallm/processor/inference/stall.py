"""Detects that a run makes no progress. With a dead actor in a fixed pool, no free CPU or a lost GPU, Ray
waits for ever and reports nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_raydatallm.contract.result.errors import SliceError

#: How long an engine may start, unless the timeout is longer: loading the largest models takes less.
START_SECONDS = 2 * 3600.0


class StallWatch:
    """Raises when no row finished for too long, also after the last one: then the run must end. The time in
    which an engine starts does not count, up to `START_SECONDS`."""

    def __init__(
        self,
        rows: int,
        timeout_s: float,
        is_starting: Callable[[], bool],
        describe_waiting: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param is_starting: whether an engine is on its way; called only after the timeout.
        :param describe_waiting: describes what waits for what; called only before this raises."""
        self._rows_left = rows
        self._timeout_s = timeout_s
        self._is_starting = is_starting
        self._describe_waiting = describe_waiting
        self._clock = clock
        self._since = self._began = clock()
        self._engine_started = False

    def observe(self, finished_rows: int, engine_started: bool) -> None:
        """
        :param finished_rows: since the last call, however they were answered.
        :param engine_started: whether an engine is ready or has answered.
        :raises SliceError: of kind `engine`, which is retried."""
        self._rows_left -= finished_rows
        if finished_rows or (engine_started and not self._engine_started):
            self._since = self._clock()
        self._engine_started = self._engine_started or engine_started
        now = self._clock()
        if now - self._since < self._timeout_s:
            return
        if not self._engine_started and now - self._began < START_SECONDS and self._is_starting():
            self._since = now
            return
        waiting = f"{self._rows_left:,} rows wait" if self._rows_left > 0 else "the run is to end"
        event = f"no row finished for {self._timeout_s:g} s"
        raise stall_error(event, waiting, self._describe_waiting())


def stall_error(event: str, waiting: str, description: str) -> SliceError:
    return SliceError(
        f"{event} (limits.stall) while {waiting}{f': {description}' if description else ''}",
        kind="engine",
        advice=("Run the slice again", "Raise limits.stall for work that takes longer"),
    )
