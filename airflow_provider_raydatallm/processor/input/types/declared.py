"""`source.column_types`: types that people name for columns, and for fields within them.

A path is a column's name, then fields of structs after dots, and `[]` for the items of a list: `orders[].id`.
A column whose own name has dots goes by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.types.plain import ITEMS, ColumnPath, replace_parts, type_at

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([^\]]+))?\]")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+),\s*(\d+)\)")


def parse_type(column: str, text: str) -> pa.DataType:
    """Parses an Arrow type's name: `int64`, `float64`, `bool`, `date32`, `timestamp[us, tz=UTC]`,
    `decimal(10, 2)`, ...

    :raises SliceError: naming the column and the type.
    """
    try:
        if match := _TIMESTAMP.fullmatch(text):
            return pa.timestamp(match.group(1), match.group(2))
        if match := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(match.group(1)), int(match.group(2)))
        return pa.type_for_alias(text)
    except ValueError:
        raise SliceError(
            f"source.column_types[{column!r}] is {text!r}, which is not a valid Arrow type",
            kind="input",
            advice="Use string, int64, float64, bool, date32, timestamp[us], timestamp[us, tz=UTC], "
            "decimal(10, 2) or the like",
        ) from None


def parse_path(text: str, columns: Collection[str]) -> ColumnPath:
    """:param columns: those of the input."""
    if text in columns:
        return (text,)
    steps = text.replace(ITEMS, f".{ITEMS}").split(".")
    return tuple(step for step in steps if step) or (text,)


def declared_fields(types: Mapping[ColumnPath, pa.DataType]) -> pa.Schema:
    """The columns with the fields that have a declared type, and no others."""
    trees: dict[str, dict[ColumnPath, pa.DataType]] = {}
    for (name, *rest), kind in types.items():
        trees.setdefault(name, {})[tuple(rest)] = kind
    return pa.schema([(name, _build(tree)) for name, tree in trees.items()])


def with_declared(schema: pa.Schema, types: Mapping[ColumnPath, pa.DataType]) -> pa.Schema:
    """The schema with the declared types in it."""
    return pa.schema(
        [(f.name, replace_parts(f.type, lambda path, _: types.get(path), (f.name,))) for f in schema]
    )


def undeclared(types: Mapping[ColumnPath, pa.DataType], schema: pa.Schema) -> Iterator[ColumnPath]:
    """Yields the paths that lead nowhere in the schema."""
    for path in types:
        if type_at(schema, path) is None:
            yield path


def _build(tree: Mapping[ColumnPath, pa.DataType]) -> pa.DataType:
    if () in tree:
        return tree[()]
    parts: dict[str, dict[ColumnPath, pa.DataType]] = {}
    for (step, *rest), kind in tree.items():
        parts.setdefault(step, {})[tuple(rest)] = kind
    if ITEMS in parts:
        return pa.list_(pa.field("element", _build(parts[ITEMS])))
    return pa.struct([(name, _build(part)) for name, part in parts.items()])
