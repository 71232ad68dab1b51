"""Finds the rows that kill an engine, among those that were in engines when they died.

Suspects run last, or when no other worker is left, on a worker of the slice's own, which may die as often as
it takes: a few at a time, and when that kills it, each alone. A row that kills it alone is quarantined, if
the engine works without it: before the first suspect and after each such death it must answer a request of
one token. So a broken engine ends the run, and quarantines nothing. Rows with the same request are
quarantined with it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.feeder import Feeder
from airflow_provider_raydatallm.processor.engines.feeding.row import (
    Row,
    RowDispatcher,
    call_table,
)
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker, WorkerDiedError

ENGINE_KILLED_BY_ROW = "EngineKilledByRow"
#: Suspects that run at a time: a death costs a start of the engine, a narrow engine only some speed.
_ROWS_AT_ONCE = 32
_POLL_SECONDS = 0.5


class SuspectFeeder(Feeder):
    """Answers suspects; there is one."""

    def _new_dispatcher(self) -> RowDispatcher:
        return Isolation(self._pool.ready, on_group=self._deliver_group, on_culprit=self._quarantine)

    def _quarantine(self, row: Row) -> None:
        self._deliver_new(
            [row],
            finished_at=[time.time()],
            error_type=[ENGINE_KILLED_BY_ROW],
            error=["the engine died while it answered this request alone, and answers others"],
        )


class Isolation:
    """Answers rows as they are handed in."""

    def __init__(
        self,
        workers: Callable[[], Sequence[Worker]],
        *,
        on_group: Callable[[Sequence[Row], pa.Table], None],
        on_culprit: Callable[[Row], None],
    ) -> None:
        self._workers, self._on_group, self._on_culprit = workers, on_group, on_culprit
        self._has_worked = False
        self._deadly: set[tuple[Any, ...]] = set()

    def wait_for_room(self) -> None:
        """There always is."""

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool = False) -> None:
        """Answers the rows. What a living engine leaves unanswered waits for the next round.

        :raises SliceError: of kind `engine`, when the engine does not work without them.
        """
        if rows and not self._has_worked:
            self._check_engine()
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = self._without_deadly(rows[start : start + _ROWS_AT_ONCE])
            died, unanswered = self._answer(some, self._on_group)
            if died is not None:
                self._answer_alone(unanswered)

    def drain(self) -> None:
        """All rows have been answered."""

    def _without_deadly(self, rows: Sequence[Row]) -> list[Row]:
        """Rows whose requests may be sent. Each of the others would cost a start of the engine."""
        others = []
        for row in rows:
            if _request(row) in self._deadly:
                self._on_culprit(row)
            else:
                others.append(row)
        return others

    def _answer_alone(self, rows: Sequence[Row]) -> None:
        """Answers rows one by one."""
        for row in rows:
            died, _ = self._answer(self._without_deadly([row]), self._on_group)
            if died is not None:
                self._check_engine()
                self._deadly.add(_request(row))
                self._on_culprit(row)

    def _answer(
        self, rows: Sequence[Row], on_group: Callable[[Sequence[Row], pa.Table], None]
    ) -> tuple[Worker | None, list[Row]]:
        """Returns the worker if it died by itself before its last answer, and the rows without one."""
        unanswered = dict(enumerate(rows))
        while unanswered:
            worker = self._wait_for_worker()
            try:
                for group in worker.generate(call_table(unanswered)):
                    numbers = enumerate(group.column("row").to_pylist())
                    places = {unanswered.pop(n): place for place, n in numbers if n in unanswered}
                    if places:
                        on_group(list(places), group.take(pa.array(places.values(), pa.int64())))
                break
            except WorkerDiedError as e:
                if e.by_itself and unanswered:
                    return worker, list(unanswered.values())
                # Its node is gone, or somebody ended it: the rows had no part in that.
        return None, list(unanswered.values())

    def _check_engine(self) -> None:
        """:raises SliceError: when it dies of a request of one token."""
        died, _ = self._answer([_request_of_one_token()], lambda rows, group: None)
        if died is not None:
            raise SliceError(
                "the engine dies whatever it is asked, also of a request of one token: no row is the reason",
                kind="engine",
                log=died.process,
            )
        self._has_worked = True

    def _wait_for_worker(self) -> Worker:
        """The driver starts it again, and ends the run when it cannot."""
        while not (workers := self._workers()):
            time.sleep(_POLL_SECONDS)
        return workers[0]


def _request(row: Row) -> tuple[Any, ...]:
    media = [hashlib.blake2b(medium.data, digest_size=16).digest() for medium in row.media]
    return bytes(row.tokens.data), row.params, *media


def _request_of_one_token() -> Row:
    return Row(0, 0, tokens=np.array([1], np.int32), params='{"max_tokens": 1}', max_tokens=1)
