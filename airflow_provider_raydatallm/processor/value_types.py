"""Types of the Python values that a postprocess function returns, and the types that hold several of them.

A type is a JSON value, so that the tasks of a slice can agree on it in a document: a name of `_ARROW`,
`{"decimal": [precision, scale]}`, `{"list": type}`, `{"struct": {name: type}}`, or, for a model's vectors
only, `{"vector": [dtype, size]}`.

`merge` decides what one column can hold:

* null and any type: that type. Lists and structs merge what is inside; a struct has the fields of all values.
* "int" (up to 2**53, which a float holds exactly) and float: float. "bigint" (up to 64 bits) is never mixed
  with floats, since a large integer would change its value. A bool is not a number.
* NumPy's 32-bit floats (embeddings) stay such among themselves.
* Decimals grow to 38 digits, and hold integers. A date and a datetime without a timezone: datetime.
* Datetimes with a timezone are published in UTC and not mixed with those without one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import reprlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ValueType = str | dict[str, Any]
#: Types of columns, by name.
ColumnTypes = dict[str, ValueType]

_ARROW = {
    "null": pa.null(), "bool": pa.bool_(), "int": pa.int64(), "bigint": pa.int64(), "float": pa.float64(),
    "float32": pa.float32(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "time": pa.time64("us"), "timestamp": pa.timestamp("us"), "timestamp_utc": pa.timestamp("us", "UTC"),
    "duration": pa.duration("us"),
}  # fmt: skip
_VECTOR_ITEMS = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
_WIDER = {
    frozenset({"int", "bigint"}): "bigint",
    frozenset({"int", "float"}): "float",
    frozenset({"int", "float32"}): "float",
    frozenset({"float32", "float"}): "float",
    frozenset({"date", "timestamp"}): "timestamp",
}
_EXACT_INT = 2**53  # integers up to here are exact as float64
_MAX_DURATION = dt.timedelta(microseconds=2**63 - 1)
_MAX_DIGITS = 38  # of a decimal128
_INT64_DIGITS = 19
#: Arrow streams hold 64 levels.
MAX_DEPTH = 32
#: A text or bytes. Arrow and Parquet address 2 GiB in a chunk of a column.
MAX_CELL_BYTES = 64 << 20


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 100


class TypeMismatch(TypeError):
    """A value does not fit its column, or no column can hold it."""


def typed(value: Any, depth: int = 0) -> tuple[ValueType, Any]:
    """The value's type, and the value as plain Python. An empty dict has no fields to publish: it is null.

    :raises TypeMismatch: when no column can hold it.
    """
    if depth > MAX_DEPTH:
        raise TypeMismatch(f"it is nested in more than {MAX_DEPTH} levels")
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, (np.generic, np.ndarray)):
        if value.dtype in (np.float16, np.float32) and depth + value.ndim <= MAX_DEPTH:
            return _nested_list("float32", value.ndim), value.tolist()
        value = _without_numpy(value)
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise TypeMismatch("it is an integer of more than 64 bits")
        return "int" if abs(value) <= _EXACT_INT else "bigint", int(value)
    if isinstance(value, float):
        return "float", float(value)
    if isinstance(value, str):
        return "string", _checked_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
        _check_size(value)
        return "binary", value
    if isinstance(value, (list, tuple)):
        return _typed_list(value, depth)
    if (fields := as_mapping(value)) is not None:
        items = {_field_name(name): typed(v, depth + 1) for name, v in fields.items()}
        if not items:
            return "null", None
        return {"struct": {name: t for name, (t, _) in items.items()}}, {n: v for n, (_, v) in items.items()}
    return _typed_moment(value)


def _without_numpy(value: Any) -> Any:
    if value.dtype.kind not in "mM":
        return value.tolist()
    if isinstance(value, np.ndarray):
        return list(value)
    if np.isnat(value):
        return None
    rounded = value.astype("datetime64[us]" if value.dtype.kind == "M" else "timedelta64[us]")
    if rounded.astype(value.dtype) != value or isinstance(rounded.item(), int):
        raise TypeMismatch("columns hold microseconds, of the years 1 to 9999")
    return rounded.item()


def _nested_list(kind: ValueType, levels: int) -> ValueType:
    return {"list": _nested_list(kind, levels - 1)} if levels else kind


def _typed_list(values: list[Any] | tuple[Any, ...], depth: int) -> tuple[ValueType, Any]:
    if set(map(type, values)) == {float}:  # embeddings
        return {"list": "float"}, list(values)
    items = [typed(v, depth + 1) for v in values]
    kind: ValueType = "null"
    for item, _ in items:
        kind = merge(kind, item)
    return {"list": kind}, [v if item == kind else coerce(v, kind) for item, v in items]


def _typed_moment(value: Any) -> tuple[ValueType, Any]:
    if isinstance(value, dt.datetime):
        if value != value:  # pandas' NaT
            return "null", None
        if getattr(value, "nanosecond", 0):
            raise TypeMismatch("columns hold microseconds, of the years 1 to 9999")
        plain = dt.datetime(*value.timetuple()[:6], value.microsecond, tzinfo=value.tzinfo, fold=value.fold)
        if value.utcoffset() is None:
            return "timestamp", plain.replace(tzinfo=None, fold=0)
        try:
            return "timestamp_utc", plain.astimezone(dt.UTC)
        except OverflowError as e:
            raise TypeMismatch("columns hold microseconds, of the years 1 to 9999") from e
    if isinstance(value, dt.date):
        return "date", value
    if isinstance(value, dt.time):
        if value.tzinfo is not None:
            raise TypeMismatch("it is a time with a timezone")
        return "time", value
    if isinstance(value, dt.timedelta):
        if getattr(value, "nanoseconds", 0) or not abs(value) < _MAX_DURATION:
            raise TypeMismatch("columns hold durations of microseconds, of up to 292,000 years")
        return "duration", value
    if isinstance(value, Decimal):
        return _decimal_type(value), value
    raise TypeMismatch(f"no column can hold a {type(value).__name__}")


def _decimal_type(value: Decimal) -> ValueType:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise TypeMismatch("it is not a finite number")
    scale = max(0, -exponent)
    return _decimal(max(len(digits) + max(0, exponent), scale, 1) - scale, scale)


def _decimal(integer_digits: int, scale: int) -> ValueType:
    if integer_digits + scale > _MAX_DIGITS:
        raise TypeMismatch(f"it needs more than {_MAX_DIGITS} decimal digits")
    return {"decimal": [max(1, integer_digits + scale), scale]}


def as_mapping(value: Any) -> Mapping[Any, Any] | None:
    """The fields of a dict, a dataclass or a pydantic model; None for other values."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if hasattr(type(value), "model_fields") and hasattr(value, "model_dump"):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return None


def brief(value: Any) -> str:
    """The value for a message, also a huge or deep one, or one that cannot be shown."""
    return _BRIEF.repr(value)


def _field_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeMismatch(f"it has the key {brief(name)}, and names must be text")
    return _checked_text(name)


def _checked_text(text: str) -> str:
    try:
        _check_size(text.encode())
    except UnicodeEncodeError as e:
        raise TypeMismatch(f"its text is not valid Unicode: {e.reason}") from e
    return str(text)


def _check_size(data: bytes) -> None:
    if len(data) > MAX_CELL_BYTES:
        raise TypeMismatch(f"it has {len(data):,} bytes, more than the {MAX_CELL_BYTES:,} that a cell holds")


def merge(one: ValueType, other: ValueType) -> ValueType:
    """The type that holds values of both.

    :raises TypeMismatch: when there is none that keeps every value as it is.
    """
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if isinstance(one, str) and isinstance(other, str):
        wider = _WIDER.get(frozenset({one, other}))
        if wider is not None:
            return wider
    if (digits := _digits(one)) and (more := _digits(other)):
        return _decimal(max(digits[0], more[0]), max(digits[1], more[1]))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        if "list" in one:
            return {"list": merge(one["list"], other["list"])}
        if "struct" in one:
            return {"struct": merge_columns(one["struct"], other["struct"])}
    raise TypeMismatch(f"{describe(one)} and {describe(other)} do not fit into one column")


def _digits(kind: ValueType) -> tuple[int, int] | None:
    """Digits before and after the point of decimals and integers."""
    if isinstance(kind, str):
        return (_INT64_DIGITS, 0) if kind in ("int", "bigint") else None
    if "decimal" not in kind:
        return None
    precision, scale = kind["decimal"]
    return precision - scale, scale


def merge_columns(one: ColumnTypes, other: ColumnTypes) -> ColumnTypes:
    merged = dict(one)
    for name, kind in other.items():
        merged[name] = merge(merged[name], kind) if name in merged else kind
    return merged


def commonest(kinds: Iterable[ValueType]) -> ValueType:
    """The type that holds most of the types, also inside of lists and structs: one odd value does not decide
    a column's type."""
    by_family: dict[str, list[ValueType]] = {}
    for kind in kinds:
        by_family.setdefault(_family(kind), []).append(kind)
    by_family.pop("null", None)
    if not by_family:
        return "null"
    members = max(by_family.values(), key=len)
    if _family(members[0]) == "list":
        return {"list": commonest(kind["list"] for kind in members if isinstance(kind, dict))}
    if _family(members[0]) == "struct":
        fields: dict[str, list[ValueType]] = {}
        for kind in members:
            assert isinstance(kind, dict)
            for name, field in kind["struct"].items():
                fields.setdefault(name, []).append(field)
        return {"struct": {name: commonest(kinds) for name, kinds in fields.items()}}
    merged: ValueType = "null"
    for kind in members:
        with contextlib.suppress(TypeMismatch):
            merged = merge(merged, kind)
    return merged


def _family(kind: ValueType) -> str:
    """Types that mostly merge."""
    name = kind if isinstance(kind, str) else next(iter(kind))
    return {
        "int": "number",
        "bigint": "number",
        "float": "number",
        "float32": "number",
        "date": "timestamp",
    }.get(name, name)


def count_fields(columns: ColumnTypes) -> int:
    """Columns and fields of structs in them."""
    pending: list[ValueType] = [{"struct": columns}]
    count = 0
    while pending:
        kind = pending.pop()
        if isinstance(kind, dict) and "struct" in kind:
            count += len(kind["struct"])
            pending += kind["struct"].values()
        elif isinstance(kind, dict) and "list" in kind:
            pending.append(kind["list"])
    return count


def arrow_type(kind: ValueType) -> pa.DataType:
    if isinstance(kind, str):
        return _ARROW[kind]
    if "decimal" in kind:
        return pa.decimal128(*kind["decimal"])
    if "list" in kind:
        return pa.list_(arrow_type(kind["list"]))
    if "vector" in kind:
        dtype, size = kind["vector"]
        return pa.list_(_VECTOR_ITEMS[dtype], size)
    return pa.struct([(name, arrow_type(field)) for name, field in kind["struct"].items()])


def describe(kind: ValueType) -> str:
    return str(arrow_type(kind))


def coerce(value: Any, kind: ValueType) -> Any:
    """A `typed` value whose type fits `kind`, as Arrow takes it for `kind`."""
    if value is None:
        return None
    if kind == "timestamp" and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    if isinstance(kind, dict) and "list" in kind:
        return [coerce(v, kind["list"]) for v in value]
    if isinstance(kind, dict) and "struct" in kind:
        return {name: coerce(v, kind["struct"][name]) for name, v in value.items()}
    return value


def from_arrow(kind: pa.DataType) -> ValueType:
    """The type of columns that have an Arrow type. Integers count as small: a cast to float checks them.

    :raises TypeMismatch: for types that no answer has here.
    """
    if pa.types.is_struct(kind):
        return {"struct": {f.name: from_arrow(f.type) for f in kind}}
    if pa.types.is_list(kind):
        return {"list": from_arrow(kind.value_type)}
    if pa.types.is_fixed_size_list(kind):
        for name, item in _VECTOR_ITEMS.items():
            if kind.value_type == item:
                return {"vector": [name, kind.list_size]}
    if pa.types.is_decimal128(kind):
        return {"decimal": [kind.precision, kind.scale]}
    for name, arrow in _ARROW.items():
        if kind == arrow:
            return name
    raise TypeMismatch(f"{kind} is not the type of an answer")


def type_of_column(column: pa.ChunkedArray | pa.Array) -> ValueType:
    """The type of an Arrow column's values, "bigint" where it holds such."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_struct(column.type):
        fields = zip(column.type, column.flatten(), strict=True)
        return {"struct": {f.name: type_of_column(values) for f, values in fields}}
    if pa.types.is_list(column.type):
        return {"list": type_of_column(column.flatten())}
    if column.type == pa.int64():
        extremes = [abs(v) for v in pc.min_max(column).as_py().values() if v is not None]
        return "bigint" if max(extremes, default=0) > _EXACT_INT else "int"
    return from_arrow(column.type)
