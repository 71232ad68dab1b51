"""How a column's type changes from one file to the next, at any depth."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from tests.oracle.cells import is_any_list, is_bytes, is_text, is_uuid
from tests.oracle.dice import Dice
from tests.oracle.raws import (
    BINARIES,
    DATES,
    DECIMALS,
    DURATIONS,
    FIELD_NAMES,
    FLOATS,
    INTEGERS,
    STRINGS,
    TIMES,
    TIMESTAMPS,
    ZONES,
    draw_field,
)


def drift_field(dice: Dice, field: pa.Field) -> pa.Field:
    """The field with another type, or another nullability."""
    if dice.chance(8) and not pt.is_null(field.type):
        return field.with_nullable(not field.nullable)
    kind = drift_type(dice, field.type)
    return pa.field(field.name, kind, nullable=field.nullable or pt.is_null(kind))


def drift_type(dice: Dice, kind: pa.DataType) -> pa.DataType:
    if dice.chance(12):
        return pa.null()
    if pt.is_struct(kind):
        return _drift_struct(dice, kind)
    if pt.is_map(kind):
        return pa.map_(kind.key_type, drift_field(dice, kind.item_field))
    if is_any_list(kind):
        item = kind.value_field
        if not dice.chance(4):
            item = drift_field(dice, item)
        return dice.pick([pa.list_, pa.large_list, lambda f: pa.list_(f, 2)])(item)
    return dice.pick(_neighbours(kind))


def _drift_struct(dice: Dice, kind: pa.StructType) -> pa.DataType:
    fields = list(kind)
    match dice.pick(["change", "change", "add", "remove", "reverse"]):
        case "change":
            i = dice.upto(len(fields) - 1)
            fields[i] = drift_field(dice, fields[i])
        case "add":
            taken = {f.name.casefold() for f in fields}
            name = next(n for n in FIELD_NAMES if n.casefold() not in taken)
            fields.insert(dice.upto(len(fields)), draw_field(dice, name, 1))
        case "remove" if len(fields) > 1:
            del fields[dice.upto(len(fields) - 1)]
        case _:
            fields.reverse()
    return pa.struct(fields)


def _neighbours(kind: pa.DataType) -> Sequence[pa.DataType]:
    """What people also make of such a column: mostly types that hold the same values, some that do not."""
    if pt.is_integer(kind):
        return [
            *INTEGERS,
            *INTEGERS,
            pa.float64(),
            pa.decimal128(20, 4),
            pa.decimal128(5, 2),
            pa.string(),
            pa.bool_(),
        ]
    if pt.is_floating(kind):
        return [*FLOATS, *FLOATS, pa.int64(), pa.int8(), pa.decimal128(20, 4)]
    if pt.is_decimal(kind):
        return [*DECIMALS, *DECIMALS, pa.int64(), pa.uint8(), pa.float64()]
    if pt.is_timestamp(kind):
        units = [pa.timestamp(unit, kind.tz) for unit in ("s", "ms", "us", "ns")]
        zones = [pa.timestamp(kind.unit, zone) for zone in (ZONES if kind.tz else [None])]
        return [*units, *units, *zones, *zones, *TIMESTAMPS, pa.date32(), pa.string()]
    if pt.is_duration(kind):
        return [*DURATIONS, *DURATIONS, pa.int64()]
    if pt.is_time(kind):
        return [*TIMES, *TIMES, pa.string(), pa.int64()]
    if pt.is_date(kind):
        return [*DATES, *DATES, *DATES, pa.timestamp("us"), pa.string()]
    if is_uuid(kind):
        return [pa.binary(16), pa.string()]
    if is_text(kind) or pt.is_dictionary(kind):
        return [*STRINGS, *STRINGS, pa.binary(), pa.int64()]
    if is_bytes(kind):
        return [*BINARIES, *BINARIES, pa.string()]
    return [pa.int8(), pa.string()]
