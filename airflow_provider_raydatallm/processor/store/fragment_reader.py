"""Reads the rows of fragments by their places in the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.row_errors import OF_ANSWERS
from airflow_provider_raydatallm.processor.answer_schemas import conform
from airflow_provider_raydatallm.processor.storage import arrow_files
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import ledger
from airflow_provider_raydatallm.processor.store.fragments import parse_ranges
from airflow_provider_raydatallm.processor.store.ledger import position


class FragmentReader:
    """Reads answers by position, in windows of rows in plan order.

    Only the fragments of the current window are in memory. Where fragments overlap, the first by name counts.

    :param pieces: where the rows of some units are.
    :param units: the indices of those units by unit id.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        pieces: ledger.Pieces,
        units: Mapping[str, int],
        fields: Sequence[pa.Field],
    ) -> None:
        self._store = store
        self._folder = folder
        self._pieces = pieces
        self._units = units
        self._schema = pa.schema(fields)
        self._open: dict[int, pa.Table] = {}
        #: The open tables, one after the other, and where each begins.
        self._joined = self._schema.empty_table()
        self._first_row = np.zeros(len(pieces.names), np.int64)
        ranges = pieces.ranges
        starts, stops = (position(ranges.units, offsets) for offsets in (ranges.starts, ranges.stops))
        self._first_piece = np.searchsorted(pieces.numbers, np.arange(len(pieces.names) + 1))
        self._last = np.maximum.reduceat(stops, self._first_piece[:-1]) if len(stops) else stops
        order = np.argsort(starts, kind="stable")
        self._starts, self._stops = starts[order], stops[order]
        self._reach = np.maximum.accumulate(self._stops)
        self._numbers, self._rows = pieces.numbers[order], pieces.rows[order]

    def window(
        self, index: int, start: int, stop: int, *, every: bool = False
    ) -> tuple[np.ndarray, pa.Table]:
        """Returns the sorted offsets of the rows that exist in `[start, stop)` of a unit, and those rows.

        :param every: also those that another fragment holds, too.
        :raises CorruptFileError: naming the fragment.
        """
        positions, table = self.between(position(index, start), position(index, stop), every=every)
        return positions - position(index, 0), table

    def between(self, first: int, end: int, *, every: bool = False) -> tuple[np.ndarray, pa.Table]:
        """Returns the sorted positions of the rows that exist in `[first, end)`, and those rows. See
        `window`."""
        positions, numbers, rows = self._locate(first, end, every)
        needed = np.unique(numbers).tolist()
        if not self._open.keys() >= set(needed):
            for number in needed:
                if number not in self._open:
                    self._open[number] = self._load(number)
            self._join()
        table = _take(self._joined, self._first_row[numbers] + rows)
        for number in [number for number in self._open if self._last[number] <= end]:
            del self._open[number]
        if not self._open:
            self._joined = self._schema.empty_table()
        return positions, table

    def _join(self) -> None:
        """Makes one table of the open ones: taking rows from each of them costs more than copying all."""
        self._joined = pa.concat_tables(self._open.values()).combine_chunks()
        first = 0
        for number, table in self._open.items():
            self._first_row[number] = first
            self._open[number] = self._joined.slice(first, table.num_rows)
            first += table.num_rows

    def _locate(self, first: int, end: int, every: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the sorted positions of the rows in `[first, end)`, with the number of the first fragment
        that holds each and its row there."""
        some = slice(np.searchsorted(self._reach, first, "right"), np.searchsorted(self._starts, end))
        begins = np.maximum(self._starts[some], first)
        counts = np.maximum(np.minimum(self._stops[some], end) - begins, 0)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = np.repeat(begins, counts) + within
        numbers = np.repeat(self._numbers[some], counts)
        rows = np.repeat(self._rows[some] + begins - self._starts[some], counts) + within
        if (np.diff(positions) > 0).all():
            return positions, numbers, rows
        order = np.lexsort((numbers, positions))
        if every:
            return positions[order], numbers[order], rows[order]
        _, firsts = np.unique(positions[order], return_index=True)
        chosen = order[firsts]
        return positions[chosen], numbers[chosen], rows[chosen]

    def _load(self, number: int) -> pa.Table:
        path = f"{self._folder}/{self._pieces.names[number]}"
        try:
            table = self._read(number, self._store.read_start(path, arrow_files.MAX_FILE_BYTES))
        except FileNotFoundError as e:
            raise CorruptFileError(self._store, path, "it is missing") from e
        except ValueError as e:
            raise CorruptFileError(self._store, path, str(e)) from e
        return conform(table, self._schema)

    def _read(self, number: int, content: bytes) -> pa.Table:
        if ledger.content_hash(content) != ledger.hash_from_name(self._pieces.names[number]):
            raise ValueError("its content does not match the hash in its name")
        table = arrow_files.decode(content)
        ranges = parse_ranges(table.schema, table.num_rows, self._units)
        lengths = ranges.stops - ranges.starts
        rows = np.cumsum(lengths) - lengths
        here = slice(*self._first_piece[number : number + 2])
        expected, at = self._pieces.ranges[here], self._pieces.rows[here]
        # A piece is a range of the file, or the part of one that is left when rows are set aside.
        of = np.searchsorted(rows, at, "right") - 1
        is_right = (
            (ranges.units[of] == expected.units)
            & (ranges.starts[of] + (at - rows[of]) == expected.starts)
            & (expected.stops <= ranges.stops[of])
        )
        if not is_right.all():
            raise ValueError("it holds other rows than its name says")
        return table


def last_failures(offsets: np.ndarray, failures: pa.Table) -> tuple[np.ndarray, pa.Table]:
    """The last failure of each row, those of its answers before others: what kept it from an answer that was
    asked for again.

    :param offsets, failures: of every failure, as `FragmentReader.window` returns them.
    """
    error_types = failures.column("error_type")
    is_of_answer = pc.is_in(error_types, pa.array(OF_ANSWERS))
    finished_at = failures.column("finished_at").fill_null(0)
    order = np.lexsort((finished_at.to_numpy(), is_of_answer.to_numpy(), offsets))
    offsets = offsets[order]
    is_last = np.diff(offsets, append=-1) != 0
    return offsets[is_last], failures.take(pa.array(order[is_last]))


def _take(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """The rows of a table, without a copy where they follow each other."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))
