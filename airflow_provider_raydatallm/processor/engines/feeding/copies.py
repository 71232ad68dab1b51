"""Rows that wait for the answer to the same request: of this feeder's, or of another one's.

A thread asks for their answers. Rows whose answer is lost, for the feeder that inferred it died or left it,
go back to the feeder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.feeding.row import RowRequest

#: Rows that wait, at most, and their bytes.
_MOST_ROWS = 65_536
_MOST_BYTES = 512 << 20


class Copies:
    """Thread-safe."""

    def __init__(
        self,
        dedup: DedupClient,
        *,
        deliver: Callable[[Sequence[RowRequest], pa.Table], None],
        on_lost: Callable[[Sequence[RowRequest]], None],
    ) -> None:
        """
        :param deliver: takes rows and their answers (`COPIED_COLUMNS`), in the same order.
        :param on_lost: takes rows that are to be claimed again.
        """
        self._dedup, self._deliver, self._on_lost = dedup, deliver, on_lost
        self._waiting: dict[bytes, list[RowRequest]] = {}
        self._rows = self._bytes = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="ray-llm-copies", daemon=True).start()

    def add(self, key: bytes, rows: Sequence[RowRequest]) -> None:
        with self._changed:
            self._waiting.setdefault(key, []).extend(rows)
            self._rows += len(rows)
            self._bytes += sum(row.size for row in rows)
            self._changed.notify_all()

    def take(self, keys: Iterable[bytes]) -> list[RowRequest]:
        """Returns the rows that wait for these keys; they wait no longer."""
        with self._changed:
            rows = [row for key in keys for row in self._waiting.pop(key, ())]
            self._settle(rows)
        return rows

    def wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or (self._rows < _MOST_ROWS and self._bytes < _MOST_BYTES)
            )
            self._raise_error()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Returns whether no row waits any more. A row that is lost waits until the feeder has it."""
        with self._changed:
            is_empty = self._changed.wait_for(lambda: self._error is not None or not self._rows, timeout_s)
            self._raise_error()
            return is_empty

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _settle(self, rows: Sequence[RowRequest]) -> None:
        self._rows -= len(rows)
        self._bytes -= sum(row.size for row in rows)
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting)
                    keys = list(self._waiting)
                self._copy(keys)
        except BaseException as e:
            with self._changed:
                self._error = e
                self._changed.notify_all()

    def _copy(self, keys: Sequence[bytes]) -> None:
        answered, answers, lost = self._dedup.wait_for_answers(keys)
        with self._changed:
            copied = [
                (place, row) for place, key in enumerate(answered) for row in self._waiting.pop(key, ())
            ]
            again = [row for key in lost for row in self._waiting.pop(key, ())]
        if copied:
            places, rows = zip(*copied, strict=True)
            self._deliver(rows, answers.take(pa.array(places, pa.int64())))
            with self._changed:
                self._settle(rows)
        if again:
            self._on_lost(again)
            with self._changed:
                self._settle(again)
