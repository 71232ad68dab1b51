"""A row group as tables of a bounded size in memory.

A few bytes of a dictionary's indices may stand for gigabytes, and pyarrow sizes its batches by rows. So
columns whose pages all refer to a dictionary are read as dictionaries, which are as large as what is stored,
and decoded in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.formats.parquet_footer import ParquetFooter
from airflow_provider_raydatallm.processor.input.types.plain import leaves

#: Rows of a table, at most; and its bytes, about: a column may hold files.
BATCH_ROWS = 8192
TABLE_BYTES = 64 << 20
#: Rows at once of columns of which some pages refer to a dictionary: how large they become is not known
#: before.
_MIXED_ROWS = 512
#: Of what each value may take beside its text: itself, its level, its offset.
_VALUE_BYTES = 16


def read_row_group(
    footer: ParquetFooter, file: pa.NativeFile, group: int, names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yields the rows of some columns, which may be dictionaries still."""
    rows, dictionaries = _plan(footer, group, names)
    parquet = footer.open(file, dictionaries)
    for batch in parquet.iter_batches(rows, [group], list(names), use_threads=False):
        # A column's own name may hold dots, which Parquet also uses for nested fields.
        table = pa.Table.from_batches([batch]).select(names)
        yield from _pieces(table) if dictionaries else (table,)


def _plan(footer: ParquetFooter, group: int, names: Sequence[str]) -> tuple[int, list[str]]:
    """Returns the rows of a batch, and the leaf columns to be read as dictionaries."""
    metadata = footer.file.metadata.row_group(group)
    rows, chosen = metadata.num_rows, set(names)
    read = [
        (leaf, kind, number)
        for number, (leaf, (name, kind)) in enumerate(zip(footer.leaves, _leaf_types(footer), strict=True))
        if name in chosen
    ]
    is_flat = not any(leaf.max_repetition_level for leaf, _, _ in read)
    if is_flat and rows * metadata.total_byte_size <= TABLE_BYTES:  # whatever its values are
        return max(1, rows), []
    chunks = footer.chunks[group]
    texts = [(leaf.path, chunks[number]) for leaf, kind, number in read if _is_text(kind)]
    size = sum(chunks[number].size + _VALUE_BYTES * chunks[number].values for _, _, number in read)
    batch = min(BATCH_ROWS, TABLE_BYTES * rows // max(1, size))
    if any(chunk.has_dictionary and not chunk.all_dictionary for _, chunk in texts):
        batch = min(batch, _MIXED_ROWS)
    return max(1, batch), [path for path, chunk in texts if chunk.all_dictionary]


def _leaf_types(footer: ParquetFooter) -> Iterator[tuple[str, pa.DataType]]:
    """The column that each leaf is of, and its type as it is stored."""
    for field in footer.file.schema_arrow:
        yield from ((field.name, kind) for _, kind in leaves(field.type, ()))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_binary(kind))


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
