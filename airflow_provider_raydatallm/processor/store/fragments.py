"""Fragments: files of finished rows, which inference writes and publishing reads (`fragment_reader`).

A fragment is one immutable table of answer columns (`arrow_files`); its schema's metadata holds the row ids
as ranges. It is put in one step and named after its rows, the lease's epoch and its content's hash
(`ledger`), so that damage is noticed when it is read and a late fragment is harmless. Others may write into
the folder, too: what a fragment says is checked before it is used.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.row_errors import (
    DEGENERATE_ANSWER,
    INVALID_OUTPUT,
    TRUNCATED_ANSWER,
)
from airflow_provider_raydatallm.processor.answer_schemas import conform, unify_schemas
from airflow_provider_raydatallm.processor.columns import MAX_UNIT_ROWS
from airflow_provider_raydatallm.processor.storage import arrow_files
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import ledger
from airflow_provider_raydatallm.processor.value_types import TypeMismatch

#: A fragment is put when it holds this many rows or bytes, or when its oldest row has waited this long.
FRAGMENT_ROWS = 65_536
FRAGMENT_BYTES = 64 << 20
FLUSH_SECONDS = 2.0
#: What one holds at most, whoever wrote it.
_MAX_ROWS = 2 * FRAGMENT_ROWS

#: Error types of the kinds of failures; none: all others.
_KINDS_OF_FAILURES: Mapping[ledger.FragmentKind, Sequence[str]] = {
    "invalid": [INVALID_OUTPUT],
    "cut": [TRUNCATED_ANSWER, DEGENERATE_ANSWER],
    "failed": [],
}

#: Keys of the metadata: the ranges as bytes, and as JSON, which earlier versions of the provider wrote.
_RANGES, _JSON_RANGES = b"row_ranges", b"ranges"
#: Enough for the schema of nearly every fragment: one read.
_HEAD_BYTES = 64 << 10
_UNIT_ID_BYTES = 8


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
        self._pending = _new_pending()
        self._oldest: float | None = None
        self._error: Exception | None = None
        self._lock, self._putting = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._clock = threading.Thread(target=self._flush_in_time, name="ray-llm-flush", daemon=True)
        self._clock.start()

    def add(self, kind: Literal["rows", "failed"], table: pa.Table) -> None:
        """Adds finished rows, which are stored after at most `FLUSH_SECONDS` and one put.

        :raises SliceError: when fragments cannot be put.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if not table.num_rows:
                return
            is_due = False
            for kind_of_failure, rows in by_kind_of_failure(table) if kind == "failed" else [(kind, table)]:
                pending = self._pending[kind_of_failure]
                pending.add(rows)
                is_due |= pending.rows >= FRAGMENT_ROWS or pending.size_bytes >= FRAGMENT_BYTES
            self._oldest = self._oldest or time.monotonic()
        if is_due:
            self.flush()

    def put_died(self, table: pa.Table) -> None:
        """Puts the ids of rows that were in an engine when it died, at once: each death is a fragment."""
        put_fragment(self._store, self._folder, "died", table, self._unit_ids, self._epoch)

    def flush(self) -> None:
        """Puts the pending rows.

        :raises SliceError: when that fails; the rows stay pending for the next try.
        """
        with self._putting:
            with self._lock:
                flushed = self._pending
                self._pending = _new_pending()
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


def _new_pending() -> dict[ledger.FragmentKind, _Pending]:
    return {kind: _Pending() for kind in ("rows", *_KINDS_OF_FAILURES)}


def by_kind_of_failure(failed: pa.Table) -> Iterator[tuple[ledger.FragmentKind, pa.Table]]:
    """The failed rows by the kinds of their fragments, without empty ones."""
    types = failed.column("error_type")
    is_other = pa.chunked_array([pa.repeat(True, failed.num_rows)])
    for kind, error_types in _KINDS_OF_FAILURES.items():
        chosen = pc.is_in(types, pa.array(error_types)) if error_types else is_other
        if pc.any(chosen).as_py():
            yield kind, failed.filter(chosen)
            is_other = pc.and_not(is_other, chosen)


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

    :param table: of rows that an engine's death left (`died`), the row ids only.
    :param base: the version from which they are taken over, if any.
    """
    units, offsets = table.column("__unit").to_numpy(), table.column("__offset").to_numpy()
    order = np.lexsort((offsets, units))
    units, offsets = units[order], offsets[order]
    new = np.ones(len(order), bool)
    new[1:] = (units[1:] != units[:-1]) | (offsets[1:] != offsets[:-1])
    order, units, offsets = order[new], units[new], offsets[new]
    breaks = np.flatnonzero((units[1:] != units[:-1]) | (offsets[1:] != offsets[:-1] + 1)) + 1
    first, last = np.concatenate([[0], breaks]), np.concatenate([breaks, [len(order)]]) - 1
    ranges = ledger.RowRanges(units[first], offsets[first], offsets[last] + 1)
    metadata: dict[bytes, bytes | str] = {_RANGES: _format_ranges(ranges, unit_ids)}
    if kind != "rows":  # the same failure twice must make two fragments
        metadata[b"attempt"] = uuid.uuid4().hex
    unit_id = unit_ids[int(units[0])]
    kept = table.drop_columns(["__unit", "__offset"])
    if kept.num_columns:
        kept = kept.take(pa.array(order)).combine_chunks()
    try:
        if len(order) > _MAX_ROWS:
            raise arrow_files.TooLargeError(f"{len(order):,} rows")
        content = arrow_files.encode(kept.replace_schema_metadata(metadata))
    except arrow_files.TooLargeError as e:
        if len(order) == 1:
            raise SliceError(
                f"the answer to row {offsets[0] + 1:,} of unit {unit_id} cannot be stored: {e}", kind="input"
            ) from e
        for half in np.array_split(order, 2):
            put_fragment(store, folder, kind, table.take(pa.array(half)), unit_ids, epoch, base)
        return
    except ValueError as e:
        raise SliceError(
            f"answers of unit {unit_id} cannot be stored",
            kind="input",
            advice="Return plain values from postprocess",
            row_texts=(str(e),),
        ) from e
    place = (unit_id, int(offsets[0])) if len(ranges) == 1 else None
    name = ledger.fragment_name(kind, place, len(order), epoch, content, base)
    store.put(f"{folder}/{name}", content)


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    schema = _unify([t.schema for t in tables])
    return pa.concat_tables([conform(t, schema) for t in tables])


def _unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    try:
        return unify_schemas(schemas)
    except TypeMismatch as e:
        raise SliceError(
            f"the slice's answers are of different types for one {e}: the model, or what postprocess "
            "returns, changed between two runs",
            kind="input",
            advice="Set rerun.force=True to answer all rows again",
        ) from e


def read_head(store: Store, name: str) -> pa.Schema:
    """Reads a fragment's schema from its first bytes.

    :raises CorruptFileError: when it is not a fragment.
    """
    try:
        content = store.read_start(name, _HEAD_BYTES)
        if (end := arrow_files.schema_end(content)) > len(content):
            content = store.read_start(name, end)
        return arrow_files.decode_schema(content)
    except (ValueError, FileNotFoundError) as e:
        raise CorruptFileError(store, name, str(e)) from e


def fragment_ranges(store: Store, name: str, units: Mapping[str, int]) -> ledger.RowRanges:
    """
    :param units: plan indices by unit id.
    :raises CorruptFileError: when it is not a fragment, or its ranges are not those of its name.
    """
    count = ledger.count_from_name(name.rpartition("/")[2])
    try:
        return parse_ranges(read_head(store, name), count, units)
    except ValueError as e:
        raise CorruptFileError(store, name, str(e)) from e


def _format_ranges(ranges: ledger.RowRanges, unit_ids: Sequence[str]) -> bytes:
    """How many units; the id of each; how many ranges each has; the starts, and the stops, of all ranges."""
    units, counts = np.unique(ranges.units, return_counts=True)
    ids = b"".join(bytes.fromhex(unit_ids[unit]) for unit in units)
    numbers = np.concatenate([counts, ranges.starts, ranges.stops]).astype("<i4")
    return b"".join([struct.pack("<I", len(units)), ids, numbers.tobytes()])


def parse_ranges(schema: pa.Schema, count: int, units: Mapping[str, int]) -> ledger.RowRanges:
    """:raises ValueError: when they are not ranges of so many rows."""
    metadata = schema.metadata or {}
    try:
        if _RANGES in metadata:
            indices, starts, stops = _unpack_ranges(metadata[_RANGES], units)
        else:
            indices, starts, stops = _load_ranges(metadata[_JSON_RANGES], units)
    except (KeyError, ValueError, TypeError, RecursionError, struct.error) as e:
        raise ValueError(f"it does not say which rows it holds: {type(e).__name__}: {e}") from e
    lengths = stops.astype(np.int64) - starts
    if not (len(starts) and starts.min() >= 0 and lengths.min() > 0):
        raise ValueError("it says that it holds rows that no unit has")
    if not 0 < lengths.sum() == count <= _MAX_ROWS:
        raise ValueError(
            f"it holds {count:,} rows, and its ranges or the limit of {_MAX_ROWS:,} say otherwise"
        )
    return ledger.RowRanges(indices, starts, stops)


def _unpack_ranges(content: bytes, units: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    (unit_count,) = struct.unpack_from("<I", content)
    start = struct.calcsize("<I") + unit_count * _UNIT_ID_BYTES
    ids = content[struct.calcsize("<I") : start]
    numbers = np.frombuffer(content[start:], "<i4")
    counts, offsets = numbers[:unit_count].astype(np.int64), numbers[unit_count:].astype(np.int32)
    if len(counts) != unit_count or counts.min(initial=0) < 0 or 2 * counts.sum() != len(offsets):
        raise ValueError("its numbers of units and ranges do not match")
    indices = [units.get(ids[i : i + _UNIT_ID_BYTES].hex(), -1) for i in range(0, len(ids), _UNIT_ID_BYTES)]
    starts, stops = offsets.reshape(2, -1)
    return np.repeat(np.array(indices, np.int32), counts), starts, stops


def _load_ranges(content: bytes, units: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    indices, starts, stops = [], [], []
    for unit, start, stop in json.loads(content):
        if not (isinstance(unit, str) and type(start) is type(stop) is int and stop <= MAX_UNIT_ROWS):
            raise ValueError(f"rows {start!r} to {stop!r} of unit {unit!r}")
        indices.append(units.get(unit, -1))
        starts.append(max(start, -1))
        stops.append(stop)
    return np.array(indices, np.int32), np.array(starts, np.int32), np.array(stops, np.int32)


def fragment_fields(store: Store, folder: str, fragments: ledger.Fragments) -> list[pa.Field]:
    """The published columns of answered rows, with types that fit all their fragments.

    :raises SliceError: when no type fits a column's values.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(32) as pool:
        heads = list(pool.map(lambda name: read_head(store, f"{folder}/{name}"), fragments.names))
    return [f for f in _unify(heads) if not f.name.startswith("__")]
