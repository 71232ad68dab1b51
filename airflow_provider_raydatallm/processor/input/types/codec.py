"""Plain types as JSON, for documents that others may write, too: reading one runs no code, as Arrow's own
form of an extension type would."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.plain import is_uuid

_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_MOMENT = re.compile(r"(timestamp|duration|time64|time32)\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_WIDTH = re.compile(r"fixed_size_binary\[(\d+)\]")
_NAMES = {
    str(kind): kind
    for kind in (
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
        pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
        pa.binary(), pa.large_binary(), pa.date32(),
    )
}  # fmt: skip
_MAX_DEPTH = 64


def schema_to_json(schema: Iterable[pa.Field]) -> list[list[Any]]:
    return [[field.name, to_json(field.type)] for field in schema]


def schema_from_json(value: list[list[Any]]) -> pa.Schema:
    """:raises ValueError: when `schema_to_json` does not return that."""
    try:
        return pa.schema([(name, from_json(kind)) for name, kind in value])
    except (TypeError, KeyError, AttributeError, pa.ArrowException) as e:
        raise ValueError(f"it holds no types: {e}") from e


def to_json(kind: pa.DataType) -> Any:
    """A name, or for a nested type {"list": items}, {"struct": [[name, type], ...]} and so on."""
    if pt.is_struct(kind):
        return {"struct": schema_to_json(kind)}
    if pt.is_map(kind):
        return {"map": [to_json(kind.key_type), to_json(kind.item_type)]}
    if pt.is_fixed_size_list(kind):
        return {"fixed_size_list": [to_json(kind.value_type), kind.list_size]}
    if pt.is_large_list(kind):
        return {"large_list": to_json(kind.value_type)}
    if pt.is_list(kind):
        return {"list": to_json(kind.value_type)}
    return "uuid" if is_uuid(kind) else str(kind)


def from_json(value: Any, depth: int = 0) -> pa.DataType:
    """:raises ValueError: when `to_json` does not return that."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"a type is nested in more than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        return _parse_name(value)
    match value:
        case {"struct": fields}:
            return pa.struct([(name, from_json(kind, depth + 1)) for name, kind in fields])
        case {"map": [key, item]}:
            return pa.map_(from_json(key, depth + 1), from_json(item, depth + 1))
        case {"fixed_size_list": [items, size]}:
            return pa.list_(_items(items, depth), size)
        case {"large_list": items}:
            return pa.large_list(_items(items, depth))
        case {"list": items}:
            return pa.list_(_items(items, depth))
    raise ValueError(f"{value!r:.100} is no type")


def _items(value: Any, depth: int) -> pa.Field:
    return pa.field("element", from_json(value, depth + 1))


def _parse_name(name: str) -> pa.DataType:
    if name in _NAMES:
        return _NAMES[name]
    if name == "uuid":
        return pa.uuid()
    if match := _DECIMAL.fullmatch(name):
        of_bits = {"128": pa.decimal128, "256": pa.decimal256}[match[1]]
        return of_bits(int(match[2]), int(match[3]))
    if match := _WIDTH.fullmatch(name):
        return pa.binary(int(match[1]))
    if match := _MOMENT.fullmatch(name):
        kind, unit, zone = match.groups()
        if kind == "timestamp":
            return pa.timestamp(unit, zone)
        return {"duration": pa.duration, "time64": pa.time64, "time32": pa.time32}[kind](unit)
    raise ValueError(f"{name!r:.100} is no type")
