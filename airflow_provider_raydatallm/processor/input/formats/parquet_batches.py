"""Row groups of a file as tables of a bounded size in memory.

A few bytes of a dictionary's indices may stand for gigabytes, and pyarrow sizes its batches by rows. So
columns whose pages all refer to a dictionary are read as dictionaries, which are as large as what is stored,
and decoded in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.formats.parquet_footer import (
    Int96Unit,
    ParquetFooter,
    parse_footer,
)
from airflow_provider_raydatallm.processor.input.types.plain import leaves

#: Rows of a table, at most; and its bytes, about: a column may hold files.
BATCH_ROWS = 8192
TABLE_BYTES = 64 << 20
#: Rows at once of columns of which some pages refer to a dictionary: how large they become is not known
#: before.
_MIXED_ROWS = 512
#: Of what each value may take beside its text: itself, its level, its offset.
_VALUE_BYTES = 16


class _Leaf(NamedTuple):
    """A leaf column: its place among all of them, its path, and whether it holds texts, or several values a
    row."""

    number: int
    path: str
    is_text: bool
    is_repeated: bool


class RowGroups:
    """Reads row groups of one file, one after the other."""

    def __init__(self, footer: ParquetFooter, file: pa.NativeFile, nanoseconds: Sequence[str] = ()) -> None:
        """:param nanoseconds: columns whose timestamps in the old format (INT96) are read in that unit, and
        not in microseconds: distant years wrap there."""
        self._footer = footer
        self._file = file
        self._nanoseconds = frozenset(nanoseconds)
        self._leaves: dict[str, list[_Leaf]] = {}
        kinds = [(f.name, kind) for f in footer.file.schema_arrow for _, kind in leaves(f.type, ())]
        for number, (leaf, (name, kind)) in enumerate(zip(footer.leaves, kinds, strict=True)):
            is_text = bool(pt.is_string(kind) or pt.is_binary(kind))
            own = _Leaf(number, leaf.path, is_text, leaf.max_repetition_level > 0)
            self._leaves.setdefault(name, []).append(own)
        self._opened: dict[tuple[Int96Unit, tuple[str, ...]], pq.ParquetFile] = {}

    def read(self, group: int, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yields the rows of some columns, which may be dictionaries still.

        :raises pa.ArrowInvalid: when not all of them can be read.
        """
        if not names:  # of a file without columns, pyarrow reads no rows
            yield _without_columns(self._footer.file.metadata.row_group(group).num_rows)
            return
        rows, dictionaries = self._plan(group, names)
        by_unit: dict[Int96Unit, list[str]] = {}
        for name in names:
            by_unit.setdefault("ns" if name in self._nanoseconds else "us", []).append(name)
        opened = [(self._open(unit, dictionaries), own) for unit, own in by_unit.items()]
        batches = [file.iter_batches(rows, [group], own, use_threads=False) for file, own in opened]
        missing_rows = self._footer.file.metadata.row_group(group).num_rows
        for parts in _in_step(batches):
            columns = {n: part.column(n) for part, (_, own) in zip(parts, opened, strict=True) for n in own}
            # A column's own name may hold dots, which Parquet also uses for nested fields.
            table = pa.table([columns[name] for name in names], names=list(names))
            missing_rows -= table.num_rows
            yield from _pieces(table) if dictionaries else (table,)
        if missing_rows:  # pyarrow reads no row of some nested columns, without an error
            raise pa.ArrowInvalid(f"{missing_rows} rows are missing")

    def _open(self, unit: Int96Unit, dictionaries: tuple[str, ...]) -> pq.ParquetFile:
        if (unit, dictionaries) not in self._opened:
            footer = self._footer if unit == "us" else parse_footer(self._footer.content, unit)
            self._opened[unit, dictionaries] = footer.open(self._file, dictionaries)
        return self._opened[unit, dictionaries]

    def find_unreadable(self, group: int, names: Sequence[str]) -> str | None:
        """Returns the first column that cannot be read by itself."""
        for name in names:
            try:
                for _ in self.read(group, [name]):
                    pass
            except (pa.ArrowException, OSError, ValueError):
                return name
        return None

    def _plan(self, group: int, names: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """Returns the rows of a batch, and the leaf columns to be read as dictionaries."""
        metadata = self._footer.file.metadata.row_group(group)
        rows = metadata.num_rows
        read = [leaf for name in names for leaf in self._leaves[name]]
        is_flat = not any(leaf.is_repeated for leaf in read)
        if is_flat and rows * metadata.total_byte_size <= TABLE_BYTES:  # whatever its values are
            return max(1, min(rows, BATCH_ROWS)), ()
        chunks = self._footer.chunks[group]
        size = sum(chunks[leaf.number].size + _VALUE_BYTES * chunks[leaf.number].values for leaf in read)
        batch = min(BATCH_ROWS, TABLE_BYTES * rows // max(1, size))
        texts = [leaf for leaf in read if leaf.is_text and chunks[leaf.number].has_dictionary]
        pure = tuple(leaf.path for leaf in texts if chunks[leaf.number].all_dictionary)
        if len(pure) < len(texts):
            batch = min(batch, _MIXED_ROWS)
        return max(1, batch), pure


def _in_step(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[list[pa.RecordBatch]]:
    """Yields batches of the same rows, until one of the streams ends."""
    batches: list[pa.RecordBatch | None] = [None for _ in streams]
    while True:
        batches = [next(s, None) if b is None else b for s, b in zip(streams, batches, strict=True)]
        present = [batch for batch in batches if batch is not None]
        if len(present) < len(streams):
            return
        rows = min(batch.num_rows for batch in present)
        yield [batch.slice(0, rows) for batch in present]
        batches = [batch.slice(rows) if batch.num_rows > rows else None for batch in present]


def _without_columns(rows: int) -> pa.Table:
    structs = pa.StructArray.from_arrays([], fields=[], mask=pa.nulls(rows, pa.bool_()).fill_null(False))
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)])


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows <= 1 or sum(map(_decoded_bytes, table.itercolumns())) <= TABLE_BYTES:
        yield table
        return
    half = table.num_rows // 2
    yield from _pieces(table.slice(0, half))
    yield from _pieces(table.slice(half))


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    return sum(map(_array_bytes, column.chunks))


def _array_bytes(array: pa.Array) -> int:
    kind = array.type
    if pt.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary)
        return int(pc.sum(lengths.take(array.indices), min_count=0).as_py()) + _VALUE_BYTES * len(array)
    if pt.is_struct(kind):
        return sum(_array_bytes(part) for part in array.flatten())
    if pt.is_map(kind):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_array_bytes(part.slice(first, end - first)) for part in (array.keys, array.items))
    if pt.is_list(kind):
        return _array_bytes(array.flatten())
    return int(array.nbytes)
