"""The values of a column: of one of its parts, and their range."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.lossless import EXACT_INTS, ValueRange
from airflow_provider_raydatallm.processor.input.types.plain import KEYS, ColumnPath


def values_at(column: pa.ChunkedArray, path: ColumnPath) -> Iterator[pa.Array]:
    """Yields the values of one of a column's parts.

    :param path: the steps to it from the column.
    """
    for chunk in column.chunks:
        for step in path:
            chunk = values_of(chunk, step)
        yield chunk


def has_range(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_decimal(kind) or pt.is_temporal(kind))


def range_of(values: pa.Array) -> ValueRange | None:
    """Returns the range of integers, decimals (their digits) or counts of time; None without any."""
    kind = values.type
    if not has_range(kind):
        return None
    if pt.is_temporal(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    low, high = pc.min_max(values).as_py().values()
    if low is None:
        return None
    if pt.is_decimal(kind):
        return ValueRange(_unscaled(low, kind.scale), _unscaled(high, kind.scale))
    return ValueRange(low, high)


def rows_beyond_exact_integers(floats: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns where floats are so large that they hold not each integer."""
    limit = pa.scalar(float(EXACT_INTS[floats.type.bit_width]), floats.type)
    return pc.indices_nonzero(pc.greater_equal(pc.abs(floats), limit))


def values_of(array: pa.Array, step: str) -> pa.Array:
    """The values of a nested array's part."""
    kind = array.type
    if pt.is_struct(kind):
        return array.flatten()[kind.get_field_index(step)]
    if pt.is_map(kind):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return (array.keys if step == KEYS else array.items).slice(first, end - first)
    return items_of(array)


def items_of(lists: pa.Array) -> pa.Array:
    """`flatten()`, which fails for UUIDs at some depth, and is needed only for null lists that have items."""
    if lists.null_count == len(lists):
        return lists.values.slice(0, 0)
    if pt.is_fixed_size_list(lists.type):
        return lists.flatten()
    first, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    count = pc.sum(pc.list_value_length(lists), min_count=0).as_py()
    if count == end - first:
        return lists.values.slice(first, count)
    return lists.flatten() if count else lists.values.slice(0, 0)


def _unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -number if sign else number
