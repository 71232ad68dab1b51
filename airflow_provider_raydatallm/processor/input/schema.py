"""Column types of the input: named by the user, unified over files, and applied to tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([^\]]+))?\]")
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
            f"column_types[{column!r}] is {text!r}, which is not a valid Arrow type: use string, int64, "
            "float64, bool, date32, timestamp[us], timestamp[us, tz=UTC], decimal(10, 2), ...",
            kind="input",
        ) from None


def unify_schemas(paths: Sequence[str], schemas: Sequence[pa.Schema], *, lossless: bool) -> pa.Schema:
    """The schema that all files share. A column that a file lacks is nullable.

    :param lossless: refuse a common type that would change values.
    :raises SliceError: naming the file that does not fit.
    """
    unified = pa.schema([])
    for path, schema in zip(paths, schemas, strict=True):
        try:
            unified = pa.unify_schemas([unified, schema], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(f"{path} does not fit the files before it: {e}", kind="input") from e
    for path, schema in zip(paths, schemas, strict=True):
        for field in schema if lossless else ():
            common = unified.field(field.name).type
            if _changes_values(field.type, common):
                raise SliceError(
                    f"{path}: column {field.name!r} is {field.type}, and {common} in other files, which "
                    "would change values: give the files one type",
                    kind="input",
                )
    for index, field in enumerate(unified):
        if any(field.name not in schema.names for schema in schemas):
            unified = unified.set(index, field.with_nullable(True))
    return unified


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
