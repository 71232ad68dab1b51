"""Values of any table as plain Python, so that those of two readers can be compared.

* Numbers are Python's: int, float, Decimal compare exactly, whatever type held them. `NAN` equals itself, and
  `MINUS_ZERO` is not 0.
* A text is a str, bytes are bytes. Everything else is a tuple that begins with its kind: `("bool", b)`,
  `("uuid", 16 bytes)`, `("date", days)`, `("time", ns)`, `("local", ns)` (a timestamp without a zone),
  `("instant", ns)` (with one, whichever), `("duration", ns)`, `("list", values)`, `("struct", fields)`, where
  a null field is a missing one, `("map", ((key, value), ...))` and `("invalid text", bytes)`.
* `UNKNOWN` equals everything: what a reader cannot hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

Cell = Any

NAN = ("nan",)
MINUS_ZERO = ("-0.0",)
NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NS = 86_400 * 10**9


class _Unknown:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class Either:
    """A number that a text writes, such as 0.1 in JSON: a double or a decimal holds it."""

    def __init__(self, *values: Cell) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return other in self.values

    def __hash__(self) -> int:
        return hash(self.values[0])

    def __repr__(self) -> str:
        return f"Either{self.values}"


def number(value: Any) -> Cell:
    if isinstance(value, float):
        if math.isnan(value):
            return NAN
        if value == 0 and math.copysign(1, value) < 0:
            return MINUS_ZERO
    return value


def struct(fields: Mapping[str, Cell]) -> Cell:
    return ("struct", _Fields((name, value) for name, value in fields.items() if value is not None))


class _Fields(tuple[tuple[str, Cell], ...]):
    """Fields in any order. Sorted, so that equality needs no hashes, which `UNKNOWN` has not."""

    def __new__(cls, fields: Iterable[tuple[str, Cell]]) -> _Fields:
        return super().__new__(cls, sorted(fields, key=lambda field: field[0]))


def field_of(cell: Cell, name: str) -> Cell:
    """The value of a struct's field; None where it is missing."""
    return dict(cell[1]).get(name)


def cells(array: pa.Array | pa.ChunkedArray, like: pa.DataType | None = None) -> list[Cell]:
    """
    :param like: the type that the file names for these values, where a reader has none of its own: durations
        that DuckDB reads as integers, UUIDs that it reads as text.
    """
    if isinstance(array, pa.ChunkedArray):
        return [cell for chunk in array.chunks for cell in cells(chunk, like)]
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _of_extension(array, like)
    if pt.is_dictionary(kind):
        return cells(array.dictionary_decode(), like)
    if pt.is_null(kind):
        return [None] * len(array)
    if pt.is_struct(kind):
        return _structs(array, like)
    if is_any_list(kind):
        return _lists(array, like)
    if pt.is_map(kind):
        return _maps(array, like)
    convert, plain = _leaf(array, like)
    return [None if value is None else convert(value) for value in plain]


def _of_extension(array: pa.ExtensionArray, like: pa.DataType | None) -> list[Cell]:
    values = cells(array.storage, like)
    if array.type.extension_name == "arrow.uuid":
        return [v if v is None or isinstance(v, tuple) else ("uuid", v) for v in values]
    return values


def _leaf(array: pa.Array, like: pa.DataType | None) -> tuple[Any, list[Any]]:
    """Returns what makes a cell of a value that is not null, and the values."""
    kind = array.type
    if like is not None and pt.is_decimal(like) and pt.is_floating(kind):
        return (lambda _: UNKNOWN), array.to_pylist()  # more digits than the reader has
    if pt.is_boolean(kind):
        return (lambda v: ("bool", v)), array.to_pylist()
    if pt.is_integer(kind):
        if like is not None and pt.is_duration(like):
            factor = NS[like.unit]
            return (lambda v: ("duration", v * factor)), array.to_pylist()
        return (lambda v: v), array.to_pylist()
    if pt.is_floating(kind):
        return (lambda v: number(float(v))), array.to_pylist()
    if pt.is_date32(kind):
        return (lambda v: ("date", v)), array.view(pa.int32()).to_pylist()
    if pt.is_date64(kind):
        return (lambda v: ("date", v // 86_400_000)), array.view(pa.int64()).to_pylist()
    if pt.is_time(kind):
        storage = pa.int32() if pt.is_time32(kind) else pa.int64()
        factor = NS[kind.unit]
        return (lambda v: ("time", v * factor)), array.view(storage).to_pylist()
    if like == pa.duration("s") and kind == pa.duration("ms"):
        return (lambda _: UNKNOWN), array.to_pylist()  # Polars has no seconds, and multiplies without a check
    if pt.is_timestamp(kind) or pt.is_duration(kind):
        factor = NS[kind.unit]
        name = "duration" if pt.is_duration(kind) else "local" if kind.tz is None else "instant"
        return (lambda v: (name, v * factor)), array.view(pa.int64()).to_pylist()
    if like is not None and is_uuid(like):
        if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
            return (lambda v: ("uuid", bytes.fromhex(v.replace("-", "")))), array.to_pylist()
        return (lambda v: ("uuid", v)), array.to_pylist()
    if is_text(kind):
        return _text, array.cast(_BYTES_OF[kind]).to_pylist()
    return (lambda v: v), array.to_pylist()


_BYTES_OF = {
    pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view(),
}  # fmt: skip


def as_local(value: Cell) -> Cell:
    """The value without the zones of its instants."""
    match value:
        case ("instant", ns):
            return ("local", ns)
        case ("list", values):
            return ("list", tuple(map(as_local, values)))
        case ("struct", fields):
            return struct({name: as_local(v) for name, v in fields})
        case ("map", pairs):
            return ("map", tuple((as_local(k), as_local(v)) for k, v in pairs))
    return value


def _text(value: bytes) -> Cell:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ("invalid text", value)


def is_uuid(kind: pa.DataType) -> bool:
    return getattr(kind, "extension_name", None) == "arrow.uuid"


def is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_binary_view(kind)
        or pt.is_fixed_size_binary(kind)
    )


def is_any_list(kind: pa.DataType) -> bool:
    return bool(
        pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind) or pt.is_large_list_view(kind)
    )  # fmt: skip


def _structs(array: pa.StructArray, like: pa.DataType | None) -> list[Cell]:
    known = {f.name: f.type for f in like} if like is not None and pt.is_struct(like) else {}
    names = [f.name for f in array.type]
    columns = [cells(array.field(i), known.get(name)) for i, name in enumerate(names)]
    valid = array.is_valid().to_pylist()
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names)]
    rows = zip(*columns, strict=True) if columns else (() for _ in valid)
    return [
        struct(dict(zip(names, row, strict=True))) if ok else None
        for ok, row in zip(valid, rows, strict=True)
    ]


def _lists(array: pa.Array, like: pa.DataType | None) -> list[Cell]:
    kind = array.type
    known = _value_type(like)
    if pt.is_fixed_size_list(kind):
        items = cells(array.values, known)
        starts = [(array.offset + i) * kind.list_size for i in range(len(array))]
        ends = [start + kind.list_size for start in starts]
    elif pt.is_list_view(kind) or pt.is_large_list_view(kind):
        items = cells(array.values, known)
        starts = array.offsets.to_pylist()
        ends = [start + size for start, size in zip(starts, array.sizes.to_pylist(), strict=True)]
    else:
        items = cells(array.values, known)
        offsets = array.offsets.to_pylist()
        starts, ends = offsets[:-1], offsets[1:]
    valid = array.is_valid().to_pylist()
    found = [
        ("list", tuple(items[a:b])) if ok else None for ok, a, b in zip(valid, starts, ends, strict=True)
    ]
    if like is not None and pt.is_map(like):  # a reader without maps
        return [c and ("map", tuple((field_of(p, "key"), field_of(p, "value")) for p in c[1])) for c in found]
    return found


def _value_type(like: pa.DataType | None) -> pa.DataType | None:
    if like is None:
        return None
    if pt.is_map(like):
        return pa.struct([("key", like.key_type), ("value", like.item_type)])
    return like.value_type if is_any_list(like) else None


def _maps(array: pa.MapArray, like: pa.DataType | None) -> list[Cell]:
    is_map = like is not None and pt.is_map(like)
    keys = cells(array.keys, like.key_type if is_map else None)
    items = cells(array.items, like.item_type if is_map else None)
    offsets: Sequence[int] = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [
        ("map", tuple(zip(keys[a:b], items[a:b], strict=True))) if ok else None
        for ok, a, b in zip(valid, offsets[:-1], offsets[1:], strict=True)
    ]


def cell(kind: pa.DataType, raw: Any) -> Cell:
    """The cell of a raw value (see `raws`) of a type."""
    if raw is None or pt.is_null(kind):
        return None
    if pt.is_dictionary(kind):
        return cell(kind.value_type, raw)
    if is_uuid(kind):
        return ("uuid", raw)
    if pt.is_boolean(kind):
        return ("bool", raw)
    if pt.is_date32(kind):
        return ("date", raw)
    if pt.is_date64(kind):
        return ("date", raw // 86_400_000)
    if pt.is_time(kind):
        return ("time", raw * NS[kind.unit])
    if pt.is_timestamp(kind):
        return ("local" if kind.tz is None else "instant", raw * NS[kind.unit])
    if pt.is_duration(kind):
        return ("duration", raw * NS[kind.unit])
    if pt.is_decimal(kind):
        return Decimal((raw < 0, tuple(map(int, str(abs(raw)))), -kind.scale))
    if is_text(kind) and isinstance(raw, bytes):
        return ("invalid text", raw)
    if is_any_list(kind):
        return ("list", tuple(cell(kind.value_type, v) for v in raw))
    if pt.is_struct(kind):
        return struct({f.name: cell(f.type, raw[f.name]) for f in kind})
    if pt.is_map(kind):
        return ("map", tuple((cell(kind.key_type, k), cell(kind.item_type, v)) for k, v in raw))
    return number(raw)
