"""Fragments: files of finished rows, which inference writes and publishing reads.

A fragment is one immutable table of answer columns (`arrow_files`); its schema's metadata holds the row ids
as ranges. It is put in one step and named after its rows, the lease's epoch and its content's hash
(`ledger`), so that damage is noticed when it is read and a late fragment is harmless. Others may write into
the folder, too: what a fragment says is checked before it is used.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor import arrow_files
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import ledger
from airflow_provider_raydatallm.processor.value_types import TypeMismatch, conform, unify_schemas

#: A fragment is put when it holds this many rows or bytes, or when its oldest row has waited this long.
FRAGMENT_ROWS = 65_536
FRAGMENT_BYTES = 64 << 20
FLUSH_SECONDS = 2.0
#: What one holds at most, whoever wrote it.
_MAX_ROWS = 2 * FRAGMENT_ROWS

_RANGES = b"ranges"
#: Enough for the schema of nearly every fragment; the others are read as a whole.
_HEAD_BYTES = 64 << 10


@dataclass
class _Pending:
    """Rows that are not put yet."""

    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.rows += table.num_rows
        self.size_bytes += table.nbytes


class FragmentWriter:
    """Collects finished rows and puts them as fragments. Thread-safe.

    Tables hold `__unit` (index into the plan), `__offset` and the columns to keep.
    """

    def __init__(self, url: str, folder: str, unit_ids: Sequence[str], epoch: int) -> None:
        self._store = Store(url)
        self._folder = folder
        self._unit_ids = unit_ids
        self._epoch = epoch
        self._pending: dict[ledger.FragmentKind, _Pending] = {"rows": _Pending(), "failed": _Pending()}
        self._oldest: float | None = None
        self._error: Exception | None = None
        self._lock, self._putting = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._clock = threading.Thread(target=self._flush_in_time, name="ray-llm-flush", daemon=True)
        self._clock.start()

    def add(self, kind: ledger.FragmentKind, table: pa.Table) -> None:
        """Adds finished rows, which are stored after at most `FLUSH_SECONDS` and one put.

        :raises SliceError: when fragments cannot be put.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if not table.num_rows:
                return
            pending = self._pending[kind]
            pending.add(table)
            self._oldest = self._oldest or time.monotonic()
        if pending.rows >= FRAGMENT_ROWS or pending.size_bytes >= FRAGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Puts the pending rows.

        :raises SliceError: when that fails; the rows stay pending for the next try.
        """
        with self._putting:
            with self._lock:
                flushed = self._pending
                self._pending = {"rows": _Pending(), "failed": _Pending()}
                self._oldest = None
            try:
                for kind, pending in flushed.items():
                    if pending.tables:
                        table = _concat(pending.tables)
                        put_fragment(self._store, self._folder, kind, table, self._unit_ids, self._epoch)
                        flushed[kind] = _Pending()
            except Exception as e:
                with self._lock:
                    for kind, pending in self._pending.items():  # what came meanwhile
                        for table in pending.tables:
                            flushed[kind].add(table)
                    self._pending = flushed
                    self._oldest = time.monotonic()
                    self._error = e
                raise
            with self._lock:
                self._error = None

    def close(self) -> None:
        self._closed.set()
        self.flush()

    def _flush_in_time(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS / 4):
            oldest = self._oldest
            if oldest is not None and time.monotonic() - oldest >= FLUSH_SECONDS * 3 / 4:
                try:
                    self.flush()
                except Exception:
                    self._closed.wait(FLUSH_SECONDS)  # the next `add` raises it


def put_fragment(
    store: Store,
    folder: str,
    kind: ledger.FragmentKind,
    table: pa.Table,
    unit_ids: Sequence[str],
    epoch: int,
    base: int | None = None,
) -> None:
    """Puts rows, in any order, as one fragment.

    :param base: the version from which they are taken over, if any.
    """
    units, offsets = table.column("__unit").to_numpy(), table.column("__offset").to_numpy()
    order = np.lexsort((offsets, units))
    units, offsets = units[order], offsets[order]
    new = np.ones(len(order), bool)
    new[1:] = (units[1:] != units[:-1]) | (offsets[1:] != offsets[:-1])
    order, units, offsets = order[new], units[new], offsets[new]
    breaks = np.flatnonzero((units[1:] != units[:-1]) | (offsets[1:] != offsets[:-1] + 1)) + 1
    starts, stops = np.concatenate([[0], breaks]), np.concatenate([breaks, [len(order)]])
    ranges = [
        ledger.UnitRows(unit_ids[int(units[a])], int(offsets[a]), int(offsets[b - 1]) + 1)
        for a, b in zip(starts, stops, strict=True)
    ]
    kept = table.drop_columns(["__unit", "__offset"]).take(pa.array(order)).combine_chunks()
    metadata = {_RANGES: json.dumps(ranges)}
    if kind == "failed":  # the same failure twice must make two fragments
        metadata[b"attempt"] = uuid.uuid4().hex
    try:
        if len(order) > _MAX_ROWS:
            raise arrow_files.TooLargeError(f"{len(order):,} rows")
        content = arrow_files.encode(kept.replace_schema_metadata(metadata))
    except arrow_files.TooLargeError as e:
        if len(order) == 1:
            raise SliceError(
                f"the answer to row {offsets[0]} of unit {ranges[0].unit} cannot be stored: {e}", kind="input"
            ) from e
        for half in np.array_split(order, 2):
            put_fragment(store, folder, kind, table.take(pa.array(half)), unit_ids, epoch, base)
        return
    except ValueError as e:
        why = f"answers cannot be stored: {e}. Return plain values from postprocess"
        raise SliceError(why, kind="input") from e
    store.put(f"{folder}/{ledger.fragment_name(kind, ranges, epoch, content, base)}", content)


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    schema = _unify([t.schema for t in tables])
    return pa.concat_tables([conform(t, schema) for t in tables])


def _unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    try:
        return unify_schemas(schemas)
    except TypeMismatch as e:
        raise SliceError(f"postprocess returned values of different types for one {e}", kind="input") from e


def read_head(store: Store, name: str) -> pa.Schema:
    """Reads a fragment's schema from its first bytes.

    :raises CorruptFileError: when it is not a fragment.
    """
    for size in (_HEAD_BYTES, arrow_files.MAX_FILE_BYTES):
        try:
            return arrow_files.decode_schema(store.read_start(name, size))
        except (ValueError, FileNotFoundError) as e:
            error = e
    raise CorruptFileError(store, name, str(error)) from error


def fragment_ranges(store: Store, name: str) -> tuple[ledger.UnitRows, ...]:
    """
    :raises CorruptFileError: when it is not a fragment, or its ranges are not those of its name.
    """
    try:
        return _parse_ranges(read_head(store, name), ledger.count_from_name(name.rpartition("/")[2]))
    except ValueError as e:
        raise CorruptFileError(store, name, str(e)) from e


def _parse_ranges(schema: pa.Schema, count: int) -> tuple[ledger.UnitRows, ...]:
    """:raises ValueError: when they are not ranges of so many rows."""
    try:
        ranges = tuple(ledger.UnitRows(*r) for r in json.loads((schema.metadata or {})[_RANGES]))
    except (KeyError, ValueError, TypeError, RecursionError) as e:
        raise ValueError(f"it does not say which rows it holds: {type(e).__name__}: {e}") from e
    for unit, start, stop in ranges:
        if not (isinstance(unit, str) and type(start) is type(stop) is int and 0 <= start < stop):
            raise ValueError(f"it says that it holds rows {start!r} to {stop!r} of unit {unit!r}")
    if not 0 < sum(stop - start for _, start, stop in ranges) == count <= _MAX_ROWS:
        raise ValueError(
            f"it holds {count:,} rows, and its ranges or the limit of {_MAX_ROWS:,} say otherwise"
        )
    return ranges


def fragment_fields(store: Store, folder: str, fragments: Sequence[ledger.Fragment]) -> list[pa.Field]:
    """The published columns of the fragments, with types that fit all of them.

    :raises SliceError: when no type fits a column's values.
    """
    from concurrent.futures import ThreadPoolExecutor

    names = [f"{folder}/{f.name}" for f in fragments if f.kind == "rows"]
    with ThreadPoolExecutor(32) as pool:
        heads = list(pool.map(lambda n: read_head(store, n), names))
    return [f for f in _unify(heads) if not f.name.startswith("__")]


class FragmentReader:
    """Reads answers by position, in windows of rows in plan order.

    Only the fragments of the current window are in memory. Where fragments overlap, the first by name counts.

    :param units: plan indices by unit id.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        fragments: Sequence[ledger.Fragment],
        units: dict[str, int],
        fields: Sequence[pa.Field],
    ) -> None:
        self._store = store
        self._folder = folder
        self._schema = pa.schema(fields)
        self._names = [f.name for f in fragments]
        self._ranges = {f.name: f.ranges for f in fragments}
        self._last: dict[str, tuple[int, int]] = {}
        self._open: dict[str, pa.Table] = {}
        pieces: dict[int, list[tuple[int, int, int, int]]] = {}
        for number, fragment in enumerate(fragments):
            row = 0
            for unit, start, stop in fragment.ranges:
                if (index := units.get(unit)) is not None:
                    pieces.setdefault(index, []).append((start, stop, number, row))
                    self._last[fragment.name] = max(self._last.get(fragment.name, (0, 0)), (index, stop))
                row += stop - start
        self._pieces = {index: _Pieces.of(of_unit) for index, of_unit in pieces.items()}

    def window(self, index: int, start: int, stop: int) -> tuple[np.ndarray, pa.Table]:
        """Returns the sorted offsets of the rows that exist in `[start, stop)` of a unit, and those rows.

        :raises CorruptFileError: naming the fragment.
        """
        if index not in self._pieces:
            return np.empty(0, np.int64), self._schema.empty_table()
        offsets, numbers, rows = self._pieces[index].window(start, stop)
        tables = [self._schema.empty_table()]
        # Fragments in the order in which the rows meet them: most often the rows are in order then.
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[inverse]
        order = np.argsort(rank, kind="stable")
        for of_fragment in np.split(order, np.flatnonzero(np.diff(rank[order])) + 1):
            if len(of_fragment):
                name = self._names[numbers[of_fragment[0]]]
                tables.append(_take(self._table(name), rows[of_fragment]))
        for name in [name for name in self._open if self._last[name] <= (index, stop)]:
            del self._open[name]
        return offsets, _take(pa.concat_tables(tables), np.argsort(order))

    def _table(self, name: str) -> pa.Table:
        if name not in self._open:
            path = f"{self._folder}/{name}"
            try:
                table = self._read(name, self._store.read_start(path, arrow_files.MAX_FILE_BYTES))
            except FileNotFoundError as e:
                raise CorruptFileError(self._store, path, "it is missing") from e
            except ValueError as e:
                raise CorruptFileError(self._store, path, str(e)) from e
            self._open[name] = conform(table, self._schema)
        return self._open[name]

    def _read(self, name: str, content: bytes) -> pa.Table:
        if ledger.content_hash(content) != ledger.hash_from_name(name):
            raise ValueError("its content does not match the hash in its name")
        table = arrow_files.decode(content)
        if _parse_ranges(table.schema, table.num_rows) != self._ranges[name]:
            raise ValueError("it holds other rows than its name says")
        return table


@dataclass(frozen=True)
class _Pieces:
    """Where the rows of one unit are: sorted ranges, each in a fragment (its number) from a row on. They may
    overlap; `reach` is the highest stop up to each."""

    starts: np.ndarray
    stops: np.ndarray
    reach: np.ndarray
    numbers: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, pieces: Sequence[tuple[int, int, int, int]]) -> _Pieces:
        table = np.array(pieces, np.int64)
        starts, stops, numbers, rows = table[np.argsort(table[:, 0], kind="stable")].T
        return cls(starts, stops, np.maximum.accumulate(stops), numbers, rows)

    def window(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the sorted offsets of the rows in `[start, stop)`, with the number of the first fragment
        that holds each and its row there."""
        some = slice(np.searchsorted(self.reach, start, "right"), np.searchsorted(self.starts, stop))
        begins = np.maximum(self.starts[some], start)
        counts = np.maximum(np.minimum(self.stops[some], stop) - begins, 0)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = np.repeat(begins, counts) + within
        numbers = np.repeat(self.numbers[some], counts)
        rows = np.repeat(self.rows[some] + begins - self.starts[some], counts) + within
        order = np.lexsort((numbers, offsets))
        _, first = np.unique(offsets[order], return_index=True)
        chosen = order[first]
        return offsets[chosen], numbers[chosen], rows[chosen]


def _take(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """The rows of a table, without a copy where they follow each other."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))
