"""One type for a column that several files hold: each value of each of them is a value of it, or there is
none.

| together | become |
|---|---|
| null and anything | that |
| integers | the narrowest integer that holds all of them; signed and unsigned 64 bits: whichever holds the
values |
| integers and decimals, decimals | a decimal with all digits, of 38 at most |
| floats | the widest |
| integers and floats of JSON, whose numbers have no types | a float, if it holds each integer exactly |
| times of day; durations; instants; local times | the finest unit, if it holds the values; instants of
several zones: UTC |
| texts; bytes | text; bytes |
| structs | the fields of all, by name |
| lists; maps | a list of, a map from and to, what their parts become |
| anything else | refused |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.input.types.lossless import (
    ValueRange,
    digits,
    held_values,
    kind_of,
)
from airflow_provider_raydatallm.processor.input.types.plain import (
    ITEMS,
    KEYS,
    VALUES,
    ColumnPath,
    is_list,
    outline,
    path_text,
)

_MAX_DIGITS, _MAX_LARGE_DIGITS = 38, 76
_FINEST_FIRST = ("ns", "us", "ms", "s")


class Holder(Protocol):
    """Files that hold a column as one type."""

    @property
    def name(self) -> str:
        """Of one of them, for messages."""

    @property
    def floats_count(self) -> bool:
        """See `held_values`."""

    def value_range(self, path: ColumnPath) -> ValueRange | None:
        """Returns the range of a column's values, of integers, decimals, and counts of time; None without
        any."""


@dataclass(frozen=True)
class Held:
    """A type, and the files that hold a column as it."""

    kind: pa.DataType
    holder: Holder


def unify(path: ColumnPath, held: Iterable[Held]) -> pa.DataType:
    """Returns the type of all; null where no file has a value.

    :raises SliceError: naming two files, their types, and what to do.
    """
    some = [one for one in held if not pt.is_null(one.kind)]
    kinds = list(dict.fromkeys(one.kind for one in some))
    if len(kinds) <= 1:
        return kinds[0] if kinds else pa.null()
    if all(map(pt.is_struct, kinds)):
        return pa.struct([(name, unify((*path, name), parts)) for name, parts in _fields(some).items()])
    if all(map(pt.is_map, kinds)):
        keys = unify((*path, KEYS), [Held(one.kind.key_type, one.holder) for one in some])
        return pa.map_(keys, unify((*path, VALUES), [Held(one.kind.item_type, one.holder) for one in some]))
    if all(map(is_list, kinds)):
        items = unify((*path, ITEMS), [Held(one.kind.value_type, one.holder) for one in some])
        return _list_of(pa.field("element", items), kinds)
    return _unify_values(path, some, kinds)


def unify_schemas(schemas: Sequence[tuple[pa.Schema, Holder]]) -> pa.Schema:
    """:param schemas: plain ones (`plain_schema`)."""
    columns: dict[str, list[Held]] = {}
    for schema, holder in schemas:
        for field in schema:
            columns.setdefault(field.name, []).append(Held(field.type, holder))
    return pa.schema([(name, unify((name,), held)) for name, held in columns.items()])


def fits(path: ColumnPath, held: Held, target: pa.DataType) -> bool:
    """Whether each value is the same in `target`, which may have more fields."""
    kind = held.kind
    if kind == target or pt.is_null(kind):
        return True
    if pt.is_struct(kind) and pt.is_struct(target):
        types = {field.name: field.type for field in target}
        return all(
            field.name in types
            and fits((*path, field.name), Held(field.type, held.holder), types[field.name])
            for field in kind
        )
    if pt.is_map(kind) and pt.is_map(target):
        parts = [(KEYS, kind.key_type, target.key_type), (VALUES, kind.item_type, target.item_type)]
        return all(fits((*path, step), Held(part, held.holder), goal) for step, part, goal in parts)
    if is_list(kind) and is_list(target):
        if pt.is_fixed_size_list(target) and getattr(kind, "list_size", None) != target.list_size:
            return False
        return fits((*path, ITEMS), Held(kind.value_type, held.holder), target.value_type)
    return _find_excess(path, held, target) is None


def _fields(held: Sequence[Held]) -> dict[str, list[Held]]:
    fields: dict[str, list[Held]] = {}
    for one in held:
        for field in one.kind:
            fields.setdefault(field.name, []).append(Held(field.type, one.holder))
    return fields


def _list_of(items: pa.Field, kinds: Sequence[pa.DataType]) -> pa.DataType:
    if len({getattr(kind, "list_size", None) for kind in kinds}) == 1 and pt.is_fixed_size_list(kinds[0]):
        return pa.list_(items, kinds[0].list_size)
    return pa.large_list(items) if any(map(pt.is_large_list, kinds)) else pa.list_(items)


def _unify_values(path: ColumnPath, held: Sequence[Held], kinds: Sequence[pa.DataType]) -> pa.DataType:
    excess: _Excess | None = None
    for target in _candidates(kinds):
        found = next(filter(None, (_find_excess(path, one, target) for one in held)), None)
        if found is None:
            return target
        excess = excess or found
    raise _clash(path, held, excess)


def _candidates(kinds: Sequence[pa.DataType]) -> list[pa.DataType]:
    """Types that may hold the values of all, the best one first."""
    names = {kind_of(kind) for kind in kinds}
    if names == {"text"}:
        return [pa.large_string()]
    if names == {"bytes"}:
        return [pa.large_binary() if any(map(pt.is_large_binary, kinds)) else pa.binary()]
    if names == {"integer"}:
        return _integers(kinds)
    if names <= {"integer", "float"}:
        return [max((kind for kind in kinds if pt.is_floating(kind)), key=lambda kind: kind.bit_width)]
    if names <= {"integer", "decimal"}:
        return [_decimal(kinds)]
    if len(names) == 1 and hasattr(kinds[0], "unit"):
        return [_moments(kinds)]
    return []


def _integers(kinds: Sequence[pa.DataType]) -> list[pa.DataType]:
    signed = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    unsigned = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    of_all = [one for one in (*unsigned, *signed) if all(held_values(kind, one) is True for kind in kinds)]
    return of_all[:1] or [pa.int64(), pa.uint64()]


def _decimal(kinds: Sequence[pa.DataType]) -> pa.DataType:
    before, after = (max(numbers) for numbers in zip(*map(digits, kinds), strict=True))
    if any(map(pt.is_decimal256, kinds)):
        return pa.decimal256(min(before + after, _MAX_LARGE_DIGITS), after)
    return pa.decimal128(min(before + after, _MAX_DIGITS), after)


def _moments(kinds: Sequence[pa.DataType]) -> pa.DataType:
    unit = next(unit for unit in _FINEST_FIRST if any(kind.unit == unit for kind in kinds))
    if pt.is_time(kinds[0]):
        return pa.time64(unit)
    if pt.is_duration(kinds[0]):
        return pa.duration(unit)
    zones = {kind.tz for kind in kinds}
    return pa.timestamp(unit, zones.pop() if len(zones) == 1 else "UTC")


class _Excess(NamedTuple):
    """Values that a type does not hold.

    :ivar values: such of rows.
    """

    of: Held
    why: str
    values: tuple[str, ...] = ()


def _find_excess(path: ColumnPath, held: Held, target: pa.DataType) -> _Excess | None:
    """Why not each value is the same in `target`; None where it is."""
    values = held_values(held.kind, target, floats_count=held.holder.floats_count)
    if values is True:
        return None
    if values is False:
        return _Excess(held, f"{held.kind} would change as {target}")
    found = held.holder.value_range(path)
    if found is None or values.holds(found):
        return None
    value = found.high if found.high > values.high else found.low
    return _Excess(held, f"it has a value that is none of {target}", (_shown(value, held.kind),))


def _shown(value: int, kind: pa.DataType) -> str:
    if pt.is_decimal(kind):
        return str(value) if not kind.scale else f"{value}e-{kind.scale}"
    return f"{value} {kind.unit}" if hasattr(kind, "unit") else str(value)


def _clash(path: ColumnPath, held: Sequence[Held], excess: _Excess | None) -> SliceError:
    one, why, values = excess or _Excess(held[0], "no type holds both")
    other = next(two for two in held if two.kind != one.kind)
    is_whole = len(path) == 1
    kinds = (f"{path_text(path)} is {one.kind}, and {other.kind}",)
    hides = not is_whole or any(outline(both.kind) != str(both.kind) for both in (one, other))
    return SliceError(
        f"{one.holder.name}: column {path[0]!r} {'is' if is_whole else 'has a part that is'} "
        f"{outline(one.kind)}, and {outline(other.kind)} in {other.holder.name}: {why}",
        kind="input",
        advice="Give the files one type, name one in source.column_types, or leave the column out with "
        "columns=",
        place=Place(file=one.holder.name, column=path[0]),
        row_texts=(*(kinds if hides else ()), *values),
    )
