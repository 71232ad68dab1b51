"""Column types of the input: named by the user, unified over files, and applied to tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([^\]]+))?\]")
# Newer versions of Arrow have views.
_is_string_view, _is_binary_view, _is_list_view, _is_large_list_view = (
    getattr(pa.types, f"is_{name}_view", lambda kind: False)
    for name in ("string", "binary", "list", "large_list")
)
#: A field's metadata: the extension type that its file names, under a name that Arrow does not look for.
HIDDEN_EXTENSION = b"ARROW-extension:name"
EXTENSION_KEYS = {HIDDEN_EXTENSION, b"ARROW:extension:metadata"}
_PICKLES = b"ray.data.arrow_pickled_object"
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+),\s*(\d+)\)")


def parse_type(column: str, text: str) -> pa.DataType:
    """Parses an Arrow type's name: `int64`, `float64`, `bool`, `date32`, `timestamp[us, tz=UTC]`,
    `decimal(10, 2)`, ...

    :raises SliceError: naming the column and the type.
    """
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match.group(1), match.group(2))
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match.group(1)), int(match.group(2)))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise SliceError(
            f"source.column_types[{column!r}] is {text!r}, which is not a valid Arrow type: use string, "
            "int64, float64, bool, date32, timestamp[us], timestamp[us, tz=UTC], decimal(10, 2), ...",
            kind="input",
        ) from None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with the same values that Parquet holds and every step of a slice works with, at every depth:
    not a view, and no whole seconds, which Parquet stores as milliseconds."""
    types = pa.types
    if _is_string_view(kind):
        return pa.string()
    if _is_binary_view(kind):
        return pa.binary()
    if types.is_list(kind) or _is_list_view(kind):
        return pa.list_(plain_field(kind.value_field))
    if types.is_large_list(kind) or _is_large_list_view(kind):
        return pa.large_list(plain_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(plain_field(kind.value_field), kind.list_size)
    if types.is_map(kind):
        return pa.map_(plain_field(kind.key_field), plain_field(kind.item_field), kind.keys_sorted)
    if types.is_struct(kind):
        return pa.struct([plain_field(field) for field in kind])
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if types.is_time32(kind):
        return pa.time32("ms")
    return pa.date32() if types.is_date64(kind) else kind


def plain_field(field: pa.Field) -> pa.Field:
    """The field with its `plain_type`, and without the extension type that it was written as."""
    plain = field.with_type(plain_type(field.type))
    kept = {k: v for k, v in (field.metadata or {}).items() if k not in EXTENSION_KEYS}
    return plain.with_metadata(kept) if kept else plain.remove_metadata()


def holds_pickles(field: pa.Field) -> bool:
    """Whether a column was written as pickled Python objects, at any depth: only running them reads them."""
    if (field.metadata or {}).get(HIDDEN_EXTENSION) == _PICKLES:
        return True
    kind = field.type
    if pa.types.is_map(kind):
        return holds_pickles(kind.key_field) or holds_pickles(kind.item_field)
    return any(holds_pickles(kind.field(i)) for i in range(kind.num_fields))


def unify_schemas(paths: Sequence[str], schemas: Sequence[pa.Schema], *, lossless: bool) -> pa.Schema:
    """The schema that all files share. A column that a file lacks is nullable.

    :param lossless: refuse a common type that would change values.
    :raises SliceError: naming the file that does not fit.
    """
    firsts = {id(schema): path for path, schema in zip(paths[::-1], schemas[::-1], strict=True)}
    distinct = {id(schema): schema for schema in schemas}  # files mostly share one
    plain = [
        (firsts[key], pa.schema([plain_field(field) for field in schema])) for key, schema in distinct.items()
    ]
    unified = pa.schema([])
    for path, schema in plain:
        try:
            unified = pa.unify_schemas([unified, schema], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(f"{path} does not fit the files before it: {e}", kind="input") from e
    for path, schema in plain:
        for field in schema if lossless else ():
            common = unified.field(field.name).type
            if _changes_values(field.type, common):
                raise SliceError(
                    f"{path}: column {field.name!r} is {field.type}, and {common} in other files, which "
                    "would change values: give the files one type",
                    kind="input",
                )
    in_all = set(unified.names).intersection(*(schema.names for _, schema in plain))
    return pa.schema([f if f.name in in_all else f.with_nullable(True) for f in unified], unified.metadata)


def conform(table: pa.Table, schema: pa.Schema, constants: Mapping[str, Any]) -> pa.Table:
    """Gives `table` exactly the fields of `schema`: casts types, fills in constants, and nulls for missing
    columns."""
    columns = []
    for field in schema:
        if field.name in table.schema.names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            value = pa.scalar(constants.get(field.name), field.type)
            columns.append(pa.chunked_array([pa.repeat(value, table.num_rows)], field.type))
    return pa.Table.from_arrays(columns, schema=schema) if columns else table


def _changes_values(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return bool(source.unit != target.unit)
    return bool(pa.types.is_integer(source) and pa.types.is_floating(target))
