"""The columns that a postprocess function declares by its return annotation."""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

from airflow_provider_raydatallm.processor.value_types import (
    MAX_DEPTH,
    ColumnTypes,
    TypeMismatch,
    ValueType,
    merge,
    typed,
)

_SCALARS: dict[Any, ValueType] = {
    str: "string", int: "bigint", float: "float", bool: "bool", bytes: "binary", dt.date: "date",
    dt.time: "time", dt.timedelta: "duration",
}  # fmt: skip
_UNIONS = (typing.Union, types.UnionType)


def declared_columns(function: Callable[..., Any], output_column: str) -> ColumnTypes:
    """Types of the columns that a TypedDict, a dataclass, a pydantic model or a plain type declares. A
    declared int stays one, also when it is small. What the annotation leaves open (`dict`, a union, a
    datetime's timezone, a decimal's digits) is decided by the first answers.
    """
    try:
        called = function if hasattr(function, "__annotations__") else type(function).__call__
        annotation = typing.get_type_hints(called).get("return")
        options = [a for a in typing.get_args(annotation) if a is not type(None)]
        if typing.get_origin(annotation) in _UNIONS and len(options) == 1:
            annotation = options[0]
        if (fields := _fields(annotation)) is not None:
            return {name: _value_type(kind, 0) for name, kind in fields.items()}
        kind = _value_type(annotation, 0)
        return {output_column: kind} if kind != "null" else {}
    except Exception:  # names that exist for type checkers only
        return {}


def _fields(annotation: Any) -> dict[str, Any] | None:
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, dict) and hasattr(annotation, "__required_keys__"):  # any module's TypedDict
        return typing.get_type_hints(annotation)
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        return {f.name: hints[f.name] for f in dataclasses.fields(annotation)}
    if isinstance(model_fields := getattr(annotation, "model_fields", None), dict):
        return {name: field.annotation for name, field in model_fields.items()}
    return None


def _value_type(annotation: Any, depth: int) -> ValueType:
    if depth > MAX_DEPTH:  # a type that contains itself
        raise TypeMismatch("it contains itself")
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _value_type(arguments[0], depth)
    if origin is typing.Literal:
        return _common([typed(value)[0] for value in arguments])
    if origin in _UNIONS:
        if set(arguments) - {type(None)} == {int, float}:
            return "float"
        options = [_value_type(a, depth + 1) for a in arguments if a is not type(None)]
        return "null" if "null" in options else _common(options)
    if isinstance(origin, type) and issubclass(origin, Collection) and not hasattr(origin, "keys"):
        items = {a for a in arguments if a is not ...}
        return {"list": _value_type(items.pop(), depth + 1) if len(items) == 1 else "null"}
    if fields := _fields(annotation):
        return {"struct": {name: _value_type(kind, depth + 1) for name, kind in fields.items()}}
    return "null"


def _common(options: list[ValueType]) -> ValueType:
    try:
        common: ValueType = "null"
        for option in options:
            common = merge(common, option)
        return common
    except TypeMismatch:
        return "null"
