"""Reads units in another process first: a damaged file may end the process that reads it, and Ray starts that
one again and again."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.input.plan import Plan

#: Signals that say nothing of the file: the node is short of memory, say, or goes away.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


class Trial:
    """A process that reads units, until one ends it."""

    def __init__(self, plan: Plan, columns: Sequence[str]) -> None:
        """:param columns: those that are read of the units."""
        spawn = multiprocessing.get_context("spawn")
        self._plan = plan
        self._connection, child_end = spawn.Pipe()
        self._process = spawn.Process(target=_read_units, args=(child_end, plan, columns), daemon=True)
        self._process.start()
        child_end.close()  # so that its end is noticed

    def read(self, index: int) -> None:
        """
        :raises SliceError: naming the file, when reading the unit ends the process. Other errors are left to
            who reads it next.
        """
        try:
            self._connection.send(index)
            self._connection.recv()
        except (EOFError, OSError) as e:
            self._process.join()
            code = self._process.exitcode or 0
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            unit = self._plan.units[index]
            first, rows = unit.range.first_row, unit.range.rows
            raise SliceError(
                f"{unit.file.path}: reading its rows {first + 1:,} to {first + rows:,} ended two processes, "
                f"the last one by {cause}",
                kind="transient" if -code in _FROM_OUTSIDE else "input",
                advice="Write the file anew, in smaller row groups if memory is short",
                place=Place(file=unit.file.path),
            ) from e


def _read_units(connection: Connection, plan: Plan, columns: Sequence[str]) -> None:
    with contextlib.suppress(EOFError), plan.open() as reader:  # the other process has ended
        while True:
            unit = plan.units[connection.recv()]
            with contextlib.suppress(Exception):
                for _ in reader.read(unit, columns):
                    pass
            connection.send(None)
