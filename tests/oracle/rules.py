"""What is obviously representable, by a table of types of this package's own: it must not be refused.

Not a second copy of the product's table: it says "surely" or "perhaps", and values are compared either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from tests.oracle.cells import NS, Cell, field_of, is_any_list, is_bytes, is_text, is_uuid
from tests.oracle.judges import leaf_types

#: A type that one file has, and its values there.
Part = tuple[pa.DataType, Sequence[Cell]]


def surely_fit(parts: Sequence[Part]) -> bool:
    """Whether some type obviously holds the values of all files."""
    some = [(_plain(kind), cells) for kind, cells in parts if not pt.is_null(kind)]
    if not some:
        return True
    kinds = [kind for kind, _ in some]
    if all(pt.is_struct(kind) for kind in kinds):
        return _structs_fit(some)
    if all(pt.is_map(kind) for kind in kinds):
        return _one([kind.key_type for kind in kinds]) and surely_fit([
            (kind.item_type, [v for cell in cells if cell is not None for _, v in cell[1]])
            for kind, cells in some
        ])  # fmt: skip
    if all(is_any_list(kind) for kind in kinds):
        sizes = {kind.list_size if pt.is_fixed_size_list(kind) else None for kind in kinds}
        items = [
            (kind.value_type, [v for cell in cells if cell is not None for v in cell[1]])
            for kind, cells in some
        ]
        return len(sizes) == 1 and surely_fit(items)
    if any(pt.is_nested(kind) for kind in kinds):
        return False
    return _leaves_fit(kinds, [cell for _, cells in some for cell in cells if cell is not None])


def _structs_fit(parts: Sequence[Part]) -> bool:
    names = list(dict.fromkeys(f.name for kind, _ in parts for f in kind))
    if len({name.casefold() for name in names}) < len(names):
        return False
    return all(
        surely_fit([
            (kind.field(name).type, [field_of(cell, name) for cell in cells if cell is not None])
            for kind, cells in parts
            if kind.get_field_index(name) >= 0
        ])
        for name in names
    )  # fmt: skip


def _leaves_fit(kinds: Sequence[pa.DataType], cells: Sequence[Cell]) -> bool:
    if _one(kinds):
        return True
    if all(map(is_text, kinds)) or all(map(pt.is_floating, kinds)) or all(map(pt.is_date, kinds)):
        return True
    if all(map(is_bytes, kinds)):
        return not any(map(pt.is_fixed_size_binary, kinds))
    if all(map(pt.is_integer, kinds)):
        return pa.uint64() not in kinds or all(map(pt.is_unsigned_integer, kinds))
    if all(pt.is_integer(kind) or pt.is_decimal(kind) for kind in kinds):
        digits = [_digits(kind) for kind in kinds]
        return max(before for before, _ in digits) + max(after for _, after in digits) <= 38
    if all(map(pt.is_timestamp, kinds)):
        if len({kind.tz is None for kind in kinds}) > 1:
            return False
        return _units_fit([kind.unit for kind in kinds], cells)
    if all(map(pt.is_duration, kinds)):
        return _units_fit([kind.unit for kind in kinds], cells)
    return all(map(pt.is_time, kinds))


def _units_fit(units: Iterable[str], cells: Sequence[Cell]) -> bool:
    finest = min(NS[unit] for unit in units)
    return all(abs(ns // finest) < 2**63 - 1 for _, ns in cells)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point."""
    if pt.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return {8: 3, 16: 5, 32: 10, 64: 19 if pt.is_signed_integer(kind) else 20}[kind.bit_width], 0


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _one(kinds: Sequence[pa.DataType]) -> bool:
    return all(kind == kinds[0] for kind in kinds)


#: Readers of a table take it for text, and the next day's values for what they are.
UNTYPED = "null throughout, and not text"


def types_not_kept(published: pa.DataType, inputs: Sequence[pa.DataType]) -> str:
    """What is wrong with a published type, whatever the values are; empty when nothing is."""
    for kind, sources in _leaves_of(published, [i for i in inputs if not pt.is_null(i)]):
        if pt.is_null(kind):
            return UNTYPED
        exact = [str(s) for s in sources if pt.is_integer(s) or pt.is_decimal(s)]
        if pt.is_floating(kind) and exact:
            return f"{exact[0]} became {kind}"
        if is_uuid(kind) != any(map(is_uuid, sources)):
            return f"{' beside '.join(dict.fromkeys(map(str, sources)))} became {kind}"
    return ""


def _leaves_of(
    kind: pa.DataType, sources: Sequence[pa.DataType]
) -> Iterable[tuple[pa.DataType, list[pa.DataType]]]:
    """Types without any below them, each with those of the inputs at the same place."""
    sources = [_plain(source) for source in sources]
    if pt.is_struct(kind):
        for field in kind:
            below = [
                s.field(field.name).type
                for s in sources
                if pt.is_struct(s) and s.get_field_index(field.name) >= 0
            ]
            yield from _leaves_of(field.type, below)
    elif pt.is_map(kind):
        maps = [s for s in sources if pt.is_map(s)]
        yield from _leaves_of(kind.key_type, [s.key_type for s in maps])
        yield from _leaves_of(kind.item_type, [s.item_type for s in maps])
    elif is_any_list(kind):
        yield from _leaves_of(kind.value_type, [s.value_type for s in sources if is_any_list(s)])
    else:
        yield kind, [leaf for source in sources for leaf in leaf_types(source) if not pt.is_null(leaf)]
