"""Types and values, drawn by `Dice`: the edges among them.

A raw value is what `arrays.build` makes an Arrow array of, and what `cells.cell` makes a cell of: an integer
for everything that is one inside (dates, times, timestamps, durations, unscaled decimals), bytes for a UUID
and for a text that is not UTF-8, a list, a dict of fields, a list of pairs (map), or None.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tests.oracle.cells import NS, is_any_list, is_bytes, is_text, is_uuid
from tests.oracle.dice import Dice

_EPOCH = dt.datetime(1970, 1, 1)
#: Instants in whole seconds since 1970: the first and last years of Python, Spark, nanoseconds, Excel.
_SECONDS = [
    0, -1, 1_769_817_600, *((dt.datetime(*day) - _EPOCH) // dt.timedelta(seconds=1) for day in (
        (1, 1, 1), (1500, 1, 1), (1582, 10, 14), (1677, 9, 21, 0, 12, 43), (1677, 9, 22), (1900, 1, 1),
        (1969, 12, 31, 23, 59, 59), (2026, 3, 29, 1, 30), (2262, 4, 11, 23, 47, 16), (2262, 4, 12),
        (3000, 1, 1), (9999, 12, 31, 23, 59, 59),
    ))
]  # fmt: skip
#: Fractions of a second that need milli-, micro- and nanoseconds.
_FRACTIONS_NS = [0, 0, 999_000_000, 123_456_000, 1, 999_999_999]
TEXTS = [
    "", "a", "text", " leading", "trailing ", "01234", "1.50", "1", "-0", "1e5", "NA", "NULL", "null", "NaN",
    "nan", "true", "None", "2026-01-31", "2026-01-31T00:00:00Z", 'a "quoted" word', '"', '""', "it's", "a,b",
    "a;b\tc|d", "line\nbreak", "carriage\rreturn", "both\r\nof them", "\n", "back\\slash", '\\"', "\\n",
    "nul\x00byte", "\x01\x1f\x7f", "\u00e4\u00f6\u00fc\u00df", "e\u0301", "\U0001f600",
    "\U0001f468\u200d\U0001f469",
    "\u2028\u2029", "\ufeffmark", "\u202eright to left", "{braces}", "{}", '{"json": [1]}', "[1, 2]", "<a&b>",
    "#hash", "=1+1", "--", "x" * 300, "\u00e9" * 2_000, "long " * 3_000,
]  # fmt: skip
_BYTES = [b"", b"a", b"\x00", b"\xff\xfe", b"text", b"\xc3", b"\x89PNG\r\n\x1a\n", b"x" * 5_000]
#: Not UTF-8: half a character, a lone surrogate, an overlong one, a value beyond Unicode.
INVALID_TEXTS = [b"\xff\xfe", b"caf\xe9", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]

INTEGERS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
]  # fmt: skip
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [
    pa.decimal32(5, 2), pa.decimal64(12, 3), pa.decimal128(5, 2), pa.decimal128(19, 0), pa.decimal128(20, 4),
    pa.decimal128(38, 10), pa.decimal256(20, 2), pa.decimal256(38, 3), pa.decimal256(50, 5),
    pa.decimal256(76, 0),
]  # fmt: skip
ZONES = ["UTC", "Asia/Taipei", "America/New_York", "+05:30"]
TIMESTAMPS = [pa.timestamp(unit, zone) for unit in NS for zone in (None, *ZONES)]
DURATIONS = [pa.duration(unit) for unit in NS]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
DATES = [pa.date32(), pa.date64()]
STRINGS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]  # fmt: skip
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]
_FAMILIES: list[Sequence[pa.DataType]] = [
    INTEGERS, STRINGS, TIMESTAMPS, DECIMALS, FLOATS, [pa.bool_()], INTEGERS, STRINGS, TIMESTAMPS, DURATIONS,
    TIMES, DATES, BINARIES, [pa.uuid()], DECIMALS, [pa.null()],
]  # fmt: skip
_KEYS = [pa.string(), pa.int32(), pa.int64(), pa.date32(), pa.large_string(), pa.uuid()]
_SHAPES = ["leaf"] * 5 + ["list", "struct", "struct", "map", "large_list", "fixed"]
#: Names of fields; in a column they come with a number.
FIELD_NAMES = ["a", "b", "x.y", "item", "key", "\u00e9 \u00fc", "B"]


def draw_type(dice: Dice, depth: int = 3) -> pa.DataType:
    """A type of up to so many levels below the top."""
    shape = dice.pick(_SHAPES)
    if depth == 0 or shape == "leaf":
        return dice.pick(dice.pick(_FAMILIES))
    if shape == "struct":
        names = dict.fromkeys(dice.pick(FIELD_NAMES) for _ in range(1 + dice.upto(2)))
        by_case = {name.casefold(): name for name in names}
        return pa.struct([draw_field(dice, name, depth - 1) for name in by_case.values()])
    if shape == "map":
        return pa.map_(dice.pick(_KEYS), draw_field(dice, "value", depth - 1))
    item = draw_field(dice, "item", depth - 1)
    if shape == "fixed":
        return pa.list_(item, 1 + dice.upto(1))
    return pa.list_(item) if shape == "list" else pa.large_list(item)


def draw_field(dice: Dice, name: str, depth: int) -> pa.Field:
    kind = draw_type(dice, depth)
    return pa.field(name, kind, nullable=pt.is_null(kind) or not dice.chance(6))


def draw_raw(dice: Dice, kind: pa.DataType, nullable: bool) -> Any:
    """A raw value of a type."""
    if pt.is_null(kind) or (nullable and dice.chance(5)):
        return None
    if pt.is_dictionary(kind):
        return draw_raw(dice, kind.value_type, nullable=False)
    if dice.bad_texts and is_text(kind) and dice.chance(3):
        return dice.pick(INVALID_TEXTS)
    if pt.is_struct(kind):
        return {f.name: draw_raw(dice, f.type, f.nullable) for f in kind}
    if pt.is_map(kind):
        keys = dict.fromkeys(dice.pick(edges(kind.key_type)) for _ in range(dice.upto(2)))
        return [(key, draw_raw(dice, kind.item_type, kind.item_field.nullable)) for key in keys]
    if is_any_list(kind):
        size = kind.list_size if pt.is_fixed_size_list(kind) else dice.upto(3)
        return [draw_raw(dice, kind.value_type, kind.value_field.nullable) for _ in range(size)]
    return dice.pick(edges(kind))


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type with the same raw values that has no view, at any depth."""
    if pt.is_struct(kind):
        return pa.struct([f.with_type(without_views(f.type)) for f in kind])
    if pt.is_map(kind):
        item = kind.item_field
        return pa.map_(without_views(kind.key_type), item.with_type(without_views(item.type)))
    if is_any_list(kind):
        item = kind.value_field.with_type(without_views(kind.value_type))
        return pa.list_(item, kind.list_size if pt.is_fixed_size_list(kind) else -1)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


@cache
def edges(kind: pa.DataType) -> list[Any]:
    """Values of a type that is not nested, the plainest ones first."""
    if pt.is_boolean(kind):
        return [True, False]
    if pt.is_integer(kind):
        low, high = limits(kind)
        around = [2**p + d for p in (7, 8, 15, 16, 31, 32, 53, 63) for d in (-1, 0, 1)]
        wanted = [1, 0, 7, -1, high, low, high - 1, *around, *(-n for n in around)]
        return list(dict.fromkeys(n for n in wanted if low <= n <= high))
    if pt.is_floating(kind):
        return _floats(kind)
    if pt.is_decimal(kind):
        wanted = [1, 0, -1, 150, 10**kind.scale, 10**kind.precision - 1, 1 - 10**kind.precision, 2**53 + 1]
        wanted += [12345 * 10 ** max(0, kind.scale - 2), 10 ** (kind.precision - 1)]
        return [n for n in dict.fromkeys(wanted) if abs(n) < 10**kind.precision]
    if pt.is_date(kind):
        days = [s // 86_400 for s in _SECONDS]
        return [d * 86_400_000 for d in days] if pt.is_date64(kind) else [*days, 2_932_897, -(10**6)]
    if pt.is_time(kind):
        wanted = [0, 3_600 * 10**9, 45_296_789_123_456, 86_399_999_999_999, 86_399 * 10**9, 1]
        return list(dict.fromkeys(n // NS[kind.unit] for n in wanted))
    if pt.is_timestamp(kind):
        ticks = [(s * 10**9 + f) // NS[kind.unit] for s in _SECONDS for f in _FRACTIONS_NS]
        beyond = [] if kind.unit in ("s", "ns") else [300_000 * 365 * 86_400 * 10**9 // NS[kind.unit] // 2]
        return [n for n in dict.fromkeys(ticks + beyond) if abs(n) < 2**63]
    if pt.is_duration(kind):
        hour, second = 3_600 * 10**9 // NS[kind.unit], 10**9 // NS[kind.unit]
        days = [second * 86_400 * d for d in (1, 30, 365 * 300)]
        wanted = [hour, 0, 1, -1, second, -hour, *days, 2**53 + 1, 2**62, 2**63 - 1, 1 - 2**63]
        return [n for n in dict.fromkeys(wanted) if abs(n) < 2**63]
    if is_text(kind):
        return TEXTS
    if is_uuid(kind):
        return [bytes(range(16)), bytes(16), b"\xff" * 16]
    assert is_bytes(kind), kind
    if pt.is_fixed_size_binary(kind):
        return [(b * kind.byte_width)[: kind.byte_width] for b in _BYTES[1:]]
    return _BYTES


def limits(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    bits = kind.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pt.is_signed_integer(kind) else (0, 2**bits - 1)


def _floats(kind: pa.DataType) -> list[float]:
    scalar = {16: np.float16, 32: np.float32, 64: np.float64}[kind.bit_width]
    info = np.finfo(scalar)
    wanted = [
        1.5, 0.0, -0.0, 1.0, 0.1, -2.5, float("nan"), float("inf"), float("-inf"), 2.0**53, 16777217.0, 1e16,
        float(info.max), float(info.tiny), float(info.smallest_subnormal),
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        return [float(scalar(n)) for n in wanted]
