"""Which values of one type another type holds as they are: the table that every conversion follows."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.plain import is_uuid

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64 = 2**63
_INTEGER = re.compile(r"[+-]?\d+")
#: Integers up to here are exact as floats of so many bits.
EXACT_INTS = {16: 2**11, 32: 2**24, 64: 2**53}


class ValueRange(NamedTuple):
    """The smallest and the largest value of a column, as they are stored: integers, counts of a unit of time,
    or a decimal's digits."""

    low: int
    high: int

    def holds(self, other: ValueRange) -> bool:
        return self.low <= other.low and other.high <= self.high

    def __or__(self, other: ValueRange) -> ValueRange:
        return ValueRange(min(self.low, other.low), max(self.high, other.high))


def held_values(source: pa.DataType, target: pa.DataType, *, floats_count: bool = False) -> ValueRange | bool:
    """Returns which values of `source`, a plain type without parts, are the same in `target`: all (True),
    none or some that their range does not tell (False), or all within a range.

    :param floats_count: whether an integer may become a float that is equal, as in JSON, whose numbers have
        no types.
    """
    if source == target or pt.is_null(source):
        return True
    if kind_of(source) == kind_of(target) and kind_of(source) in ("text", "bytes"):
        return not pt.is_fixed_size_binary(target)
    if pt.is_integer(source) and pt.is_integer(target):
        return _within(_int_range(source), _int_range(target))
    if pt.is_integer(source) and pt.is_floating(target):
        exact = EXACT_INTS[target.bit_width]
        return _within(_int_range(source), ValueRange(-exact, exact)) if floats_count else False
    if pt.is_floating(source) and pt.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    if (pt.is_integer(source) or pt.is_decimal(source)) and pt.is_decimal(target):
        return _digits_held(source, target)
    if kind_of(source) == kind_of(target) and hasattr(source, "unit"):
        return _counts_held(source, target)
    return False


def holds_integer(kind: pa.DataType, value: int) -> bool:
    """Whether an integer is the same as a float of a type."""
    held = float(np.array(float(value), kind.to_pandas_dtype())) if abs(value) < 10**300 else math.inf
    return math.isfinite(held) and int(held) == value


def holds_number(kind: pa.DataType, text: str) -> bool:
    """Whether a number that a text writes may be a float of a type: an integer must be the same, and others
    no larger than the type's."""
    if _INTEGER.fullmatch(text):
        return holds_integer(kind, int(text))
    return "inf" in text.lower() or not math.isinf(pa.scalar(text).cast(kind).as_py())


def kind_of(kind: pa.DataType) -> str:
    """What a plain type without parts holds, for messages and for what goes together. Instants (with a zone)
    and local times (without one) are different kinds."""
    tests = {
        "text": pt.is_string(kind) or pt.is_large_string(kind),
        "bytes": pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind),
        "instant": pt.is_timestamp(kind) and kind.tz is not None,
        "local time": pt.is_timestamp(kind) and kind.tz is None,
        "uuid": is_uuid(kind),
        "integer": pt.is_integer(kind),
        "float": pt.is_floating(kind),
        "decimal": pt.is_decimal(kind),
        "time of day": pt.is_time(kind),
        "duration": pt.is_duration(kind),
    }
    return next((name for name, holds in tests.items() if holds), str(kind))


def digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point that a decimal, or an integer, may have."""
    if pt.is_integer(kind):
        return len(str(_int_range(kind).high)), 0
    return kind.precision - kind.scale, kind.scale


def factor(source: pa.DataType, target: pa.DataType) -> int:
    """By how much the counts of a unit of time grow in a finer one; 0 for a coarser one."""
    return _UNITS[target.unit] // _UNITS[source.unit]


def rescaled(values: ValueRange, source: pa.DataType, target: pa.DataType) -> ValueRange:
    """The range of the same values as `target`, which holds them."""
    times = 1
    if pt.is_decimal(target):
        times = 10 ** (digits(target)[1] - digits(source)[1])
    elif hasattr(source, "unit") and hasattr(target, "unit"):
        times = factor(source, target)
    return ValueRange(values.low * times, values.high * times)


def _int_range(kind: pa.DataType) -> ValueRange:
    bits = kind.bit_width
    if pt.is_unsigned_integer(kind):
        return ValueRange(0, 2**bits - 1)
    return ValueRange(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _within(values: ValueRange, held: ValueRange) -> ValueRange | bool:
    return held.holds(values) or held


def _digits_held(source: pa.DataType, target: pa.DataType) -> ValueRange | bool:
    before, after = digits(source)
    room, more = digits(target)
    if more < after:
        return False
    return before <= room or ValueRange(-(10 ** (room + after)) + 1, 10 ** (room + after) - 1)


def _counts_held(source: pa.DataType, target: pa.DataType) -> ValueRange | bool:
    times = factor(source, target)
    if times <= 1 or pt.is_time(source):  # a day has fewer nanoseconds than 64 bits hold
        return times >= 1
    return ValueRange(-((_INT64 - 1) // times), (_INT64 - 1) // times)
