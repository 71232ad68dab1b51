"""Values that are none of their column's type, at every depth: text that is not valid UTF-8, decimals of more
digits. Readers of published files stop at them, or each makes something else of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.convert import convert_parts
from airflow_provider_raydatallm.processor.input.types.plain import children
from airflow_provider_raydatallm.processor.input.types.values import values_of


def find_invalid(column: pa.ChunkedArray) -> tuple[int, pa.DataType] | None:
    """Returns the first row with an invalid value, and that value's type; None where all are valid."""
    before = 0
    for chunk in column.chunks if _may_be_invalid(column.type) else ():
        if (kind := _invalid_type(chunk)) is not None:
            rows = (_invalid_type(chunk.take(pa.array([i]))) for i in range(len(chunk)))
            return before + next(i for i, found in enumerate(rows) if found is not None), kind
        before += len(chunk)
    return None


def replace_invalid(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Puts U+FFFD in place of what is no UTF-8."""
    return pa.chunked_array([_replaced(chunk, chunk.type) for chunk in column.chunks], column.type)


def _may_be_invalid(kind: pa.DataType) -> bool:
    return _is_text(kind) or pt.is_decimal(kind) or any(_may_be_invalid(part) for _, part in children(kind))


def _invalid_type(array: pa.Array) -> pa.DataType | None:
    """The type of a value that is invalid; None where all are valid. Arrow checks nested types in other ways,
    too."""
    kind = array.type
    if _is_text(kind) or pt.is_decimal(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return kind
        return None
    checked = (values_of(array, step) for step, part in children(kind) if _may_be_invalid(part))
    return next((found for part in checked if (found := _invalid_type(part)) is not None), None)


def _replaced(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_nested(kind):
        return array if _invalid_type(array) is None else convert_parts(array, kind, _replaced)
    if not _is_text(kind) or _invalid_type(array) is None:
        return array
    stored = array.cast(pa.large_binary() if pt.is_large_string(kind) else pa.binary())
    texts = (None if value is None else value.decode(errors="replace") for value in stored.to_pylist())
    return pa.array(texts, kind, size=len(array))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
