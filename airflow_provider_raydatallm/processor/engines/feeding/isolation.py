"""Finds the rows that kill an engine, among those that were in engines when they died.

Suspects run last, on a worker of the slice's own, which may die as often as it takes: a few at a time, and
when that kills it, each alone. A row that kills it alone is quarantined, if the engine works without it:
before the first suspect and after each such death it must answer a request of one token. So a broken engine
ends the run, and quarantines nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.feeder import Feeder
from airflow_provider_raydatallm.processor.engines.feeding.row import (
    Row,
    RowDispatcher,
    RowsInWork,
    call_table,
)
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker, WorkerDiedError

ENGINE_KILLED_BY_ROW = "EngineKilledByRow"
#: Suspects that run at a time: a death costs a start of the engine, a narrow engine only some speed.
_ROWS_AT_ONCE = 32
_POLL_SECONDS = 0.5


class SuspectFeeder(Feeder):
    """Answers suspects; there is one, with one thread."""

    def _new_dispatcher(self) -> RowDispatcher:
        return Isolation(self._pool.ready, on_group=self._deliver_group, on_culprit=self._quarantine)

    def _quarantine(self, row: Row) -> None:
        self._deliver_new(
            row.block.take(pa.array([row.index])),
            finished_at=[time.time()],
            error_type=[ENGINE_KILLED_BY_ROW],
            error=["the engine died while it answered this row alone, and answers other rows"],
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

    def wait_for_room(self) -> None:
        """There always is."""

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool = False) -> RowsInWork:
        """Answers the rows.

        :raises SliceError: of kind `engine`, when the engine does not work without them.
        """
        if rows and not self._has_worked:
            self._check_engine()
        settled = RowsInWork(0)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            has_died, unanswered = self._answer(rows[start : start + _ROWS_AT_ONCE])
            settled.left += self._answer_alone(unanswered) if has_died else unanswered
        return settled

    def wait(self, rows: RowsInWork) -> list[Row]:
        return rows.left

    def _answer_alone(self, rows: Sequence[Row]) -> list[Row]:
        """Answers rows one by one. Returns those that the engine left unanswered without dying."""
        left: list[Row] = []
        for row in rows:
            has_died, unanswered = self._answer([row])
            if has_died:
                self._check_engine()
                self._on_culprit(row)
            else:
                left += unanswered
        return left

    def _answer(self, rows: Sequence[Row]) -> tuple[bool, list[Row]]:
        """Returns whether the engine died by itself, and the rows without an answer."""
        unanswered = dict(enumerate(rows))
        while True:
            try:
                for group in self._wait_for_worker().generate(call_table(unanswered)):
                    numbers = group.column("row").to_pylist()
                    self._on_group([unanswered.pop(number) for number in numbers], group)
                return False, list(unanswered.values())
            except WorkerDiedError as e:
                if e.by_itself:
                    return True, list(unanswered.values())
                # Its node is gone, or somebody ended it: the rows had no part in that.

    def _check_engine(self) -> None:
        """:raises SliceError: when it dies of a request of one token."""
        worker = self._wait_for_worker()
        try:
            for _ in worker.generate(call_table({0: _request_of_one_token()})):
                self._has_worked = True
        except WorkerDiedError as e:
            raise SliceError(
                "the engine dies whatever it is asked, also of a request of one token: no row is the reason",
                kind="engine",
                log=worker.process,
            ) from e

    def _wait_for_worker(self) -> Worker:
        """The driver starts it again, and ends the run when it cannot."""
        while not (workers := self._workers()):
            time.sleep(_POLL_SECONDS)
        return workers[0]


def _request_of_one_token() -> Row:
    return Row(None, 0, tokens=np.array([1], np.int32), params='{"max_tokens": 1}', max_tokens=1)
