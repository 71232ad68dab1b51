"""Columns as another type that holds their values (`lossless`): a value that it does not hold is an error.

Nested types are taken apart here, since versions of Arrow differ in what they cast of these: a struct's
fields go by name, and those that it lacks are null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.plain import is_list, is_uuid
from airflow_provider_raydatallm.processor.input.types.values import items_of

_MAX_INT_DIGITS = 20


def empty_table(schema: pa.Schema) -> pa.Table:
    """`schema.empty_table()`, which fails for UUIDs within lists."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def conform(table: pa.Table, schema: pa.Schema, constants: Mapping[str, str | None]) -> pa.Table:
    """Gives a table exactly the fields of `schema`.

    :param constants: texts of columns that the table lacks; others are null.
    :raises pa.ArrowInvalid: naming the column, for a value that its new type does not hold.
    """
    own = {name: table.column(i) for i, name in enumerate(table.column_names)}
    columns = []
    for field in schema:
        if field.name in own:
            try:
                columns.append(convert(own[field.name], field.type))
            except pa.ArrowException as e:
                raise pa.ArrowInvalid(f"column {field.name!r}: {e}") from e
        elif (value := constants.get(field.name)) is None or pt.is_null(field.type):
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            constant = pa.scalar(value).cast(field.type)
            columns.append(pa.chunked_array([pa.repeat(constant, table.num_rows)]))
    return pa.Table.from_arrays(columns, schema=schema) if columns else table.select([])


def convert(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    return pa.chunked_array([convert_array(chunk, kind) for chunk in column.chunks], kind)


def convert_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    source = array.type
    if source.equals(kind):
        return array
    if pt.is_null(source) or (pt.is_null(kind) and array.null_count == len(array)):
        return pa.nulls(len(array), kind)
    if pt.is_dictionary(source):
        if not len(array.dictionary):  # Arrow decodes nulls of no values for some arrays only
            return pa.nulls(len(array), kind)
        return convert_array(array.dictionary_decode(), kind)
    if pt.is_nested(source) and pt.is_nested(kind):
        return convert_parts(array, kind, convert_array)
    if is_uuid(kind) and not isinstance(source, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array.cast(pa.binary(16)))
    if pt.is_integer(source) and pt.is_decimal(kind):
        # Arrow wants room for all digits of the type; a decimal's own ones are looked at.
        array = array.cast(pa.decimal256(min(_MAX_INT_DIGITS + kind.scale, 76), kind.scale))
    return array.cast(kind)


def convert_parts(
    array: pa.Array, kind: pa.DataType, convert_part: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """Converts a nested array by its parts.

    :raises pa.ArrowInvalid: for types whose parts differ.
    """
    source = array.type
    if pt.is_struct(source) and pt.is_struct(kind):
        own = {field.name: i for i, field in enumerate(source)}
        parts = [
            convert_part(array.field(own[field.name]), field.type)
            if field.name in own
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pt.is_map(source) and pt.is_map(kind):
        # Else null maps, and rows before a slice, have entries.
        array = array.take(pa.array(np.arange(len(array))))
        keys, values = convert_part(array.keys, kind.key_type), convert_part(array.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(array, pa.int32()), keys, values, type=kind)
    if is_list(source) and pt.is_fixed_size_list(kind):
        values = convert_part(_items_of_equal_lists(array, kind.list_size), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=array.is_null())
    if is_list(source) and pt.is_list(kind):
        values = convert_part(items_of(array), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(array, pa.int32()), values, type=kind)
    if is_list(source) and pt.is_large_list(kind):
        values = convert_part(items_of(array), kind.value_type)
        return pa.LargeListArray.from_arrays(_offsets(array, pa.int64()), values, type=kind)
    raise pa.ArrowInvalid(f"{source} is not {kind}")


def _items_of_equal_lists(array: pa.Array, size: int) -> pa.Array:
    """The items of lists of one size, with so many nulls in place of a null list.

    :raises pa.ArrowInvalid: for a list of another size.
    """
    if pt.is_fixed_size_list(array.type) and array.type.list_size == size:
        return array.values.slice(array.offset * size, len(array) * size)
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    sizes = pc.fill_null(pc.list_value_length(array), size).to_numpy(zero_copy_only=False)
    if (sizes != size).any():
        raise pa.ArrowInvalid(f"a list has {sizes[sizes != size][0]} items, and {size} were expected")
    first = (np.cumsum(is_valid) - is_valid) * size
    places = (first[:, None] + np.arange(size)).ravel()
    return items_of(array).take(pa.array(places, mask=np.repeat(~is_valid, size)))


def _offsets(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Where each list of an array begins among the items of all, without those of null lists; null for
    these."""
    if pt.is_map(array.type):
        ends = array.offsets.to_numpy()
    else:
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])
    is_null = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(ends, pa.int64(), mask=is_null).cast(kind)
