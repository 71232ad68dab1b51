"""The first rows of a Parquet file as short texts, cut before they become Python's values where Arrow can."""

from __future__ import annotations

from collections import Counter
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Of a cell's text, and of a column's name.
CELL_CHARACTERS = 2_000
#: Pages of a column are read one after the other, not the whole column at once.
_BUFFER_BYTES = 1 << 20
_TOO_LARGE = "(too large to be shown here)"


def short_cells(file: IO[bytes], rows: int, columns: int) -> tuple[list[str], list[list[str | None]]]:
    """Returns the names of the first columns, and the cells of the first rows of each of them.

    A column that needs more memory than this process may take has a text that says so in each cell.

    :raises pa.ArrowException: when the file is damaged.
    """
    with pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet:
        names = list(parquet.schema_arrow.names)[:columns]
        count = min(rows, parquet.metadata.num_rows)
        seen: Counter[str] = Counter()
        cells = []
        for name in names:
            cells.append(_column(parquet, name, seen[name], count))
            seen[name] += 1
        return [_cut(name) for name in names], cells


def _column(parquet: pq.ParquetFile, name: str, nth: int, count: int) -> list[str | None]:
    """:param nth: of the columns with that name, from 0 on."""
    cells: list[str | None] = []
    try:
        if count:
            for batch in parquet.iter_batches(batch_size=1, columns=[name], use_threads=False):
                # A name with a dot is also a path in a struct.
                named = [i for i, own in enumerate(batch.schema.names) if own == name]
                cells.append(_text(batch.column(named[nth])))
                if len(cells) == count:
                    break
    except MemoryError:
        return [_TOO_LARGE] * count
    return cells + [None] * (count - len(cells))


def _text(cell: pa.Array) -> str | None:
    """A cell as text, whatever it is: short, and never bytes. As Arrow's text of it where Python has no such
    value: a year after 9999, nanoseconds without pandas, bytes that are no UTF-8.

    :param cell: an array of one value.
    """
    try:
        if not cell[0].is_valid:
            return None
        if pa.types.is_binary(cell.type) or pa.types.is_large_binary(cell.type):
            return f"{pc.binary_length(cell)[0].as_py():,} bytes"
        value = _start(cell)[0].as_py()
    except (ValueError, OverflowError):
        return _cut(cell.to_string(skip_new_lines=True)[1:-1])
    if value is None:
        return None
    if isinstance(value, (bytes, memoryview)):
        return f"{len(value):,} bytes"
    return _cut(value if isinstance(value, str) else repr(value))


def _start(cell: pa.Array) -> pa.Array:
    """As much of a value as its text can show: each element of a list takes three characters at least."""
    kind = cell.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.utf8_slice_codeunits(cell, 0, CELL_CHARACTERS + 1)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pc.list_slice(cell, 0, CELL_CHARACTERS, return_fixed_size_list=False)
    return cell


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}…"
