"""Text that is not valid UTF-8, at every depth of a column: readers of published files stop at it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.convert import convert_parts
from airflow_provider_raydatallm.processor.input.types.plain import children


def holds_text(kind: pa.DataType) -> bool:
    return _is_text(kind) or any(holds_text(part) for _, part in children(kind))


def first_invalid_row(column: pa.ChunkedArray) -> int | None:
    """Returns the first row with invalid text; None where all is valid."""
    before = 0
    for chunk in column.chunks if holds_text(column.type) else ():
        if not _is_valid(chunk):
            return before + next(i for i in range(len(chunk)) if not _is_valid(chunk.take(pa.array([i]))))
        before += len(chunk)
    return None


def replace_invalid(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Puts U+FFFD in place of what is no UTF-8."""
    if not holds_text(column.type):
        return column
    chunks = [chunk if _is_valid(chunk) else _replaced(chunk, chunk.type) for chunk in column.chunks]
    return pa.chunked_array(chunks, column.type)


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _replaced(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_nested(kind):
        return convert_parts(array, kind, _replaced)
    if not _is_text(kind) or _is_valid(array):
        return array
    stored = array.cast(pa.large_binary() if pt.is_large_string(kind) else pa.binary())
    texts = (None if value is None else value.decode(errors="replace") for value in stored.to_pylist())
    return pa.array(texts, kind, size=len(array))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
