"""The types that a slice's columns are published as: those that its table has already, where they hold the
values."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.types.lossless import ValueRange
from airflow_provider_raydatallm.processor.input.types.plain import (
    ITEMS,
    KEYS,
    VALUES,
    ColumnPath,
    is_list,
)
from airflow_provider_raydatallm.processor.input.types.unify import Held, Holder, fits


class AnyValues:
    """Values that nobody has looked at."""

    name = "the slice"
    floats_count = False

    def value_range(self, path: ColumnPath) -> ValueRange:
        return ValueRange(-(10**99), 10**99)


@dataclass(frozen=True)
class KnownColumns:
    """Columns of a slice's table, without those of answers.

    :ivar bound: those that other slices publish, so that readers expect them of this one, too.
    """

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    bound: frozenset[str] = frozenset()


NO_COLUMNS = KnownColumns()


def published_types(schema: pa.Schema, known: KnownColumns, holder: Holder) -> pa.Schema:
    """Returns the columns as they are published: first those that other slices publish, in their order, also
    where the slice lacks them. What has no value takes the known type, or is text: readers fail over
    columns of no type.

    :param holder: of all values of the slice.
    """
    own, types = ({field.name: field.type for field in one} for one in (schema, known.schema))
    names = dict.fromkeys([*(name for name in types if name in known.bound), *own])
    return pa.schema(
        [
            (name, _published_type((name,), own.get(name, pa.null()), types.get(name), holder))
            for name in names
        ]
    )


def _published_type(
    path: ColumnPath, kind: pa.DataType, known: pa.DataType | None, holder: Holder
) -> pa.DataType:
    if pt.is_null(kind):
        return pa.string() if known is None else known
    if pt.is_struct(kind):
        of_known = known if known is not None and pt.is_struct(known) else ()
        return pa.struct(list(_published_fields(path, kind, of_known, holder)))
    if pt.is_map(kind):
        of_known = known if known is not None and pt.is_map(known) else None
        keys = _published_type((*path, KEYS), kind.key_type, of_known and of_known.key_type, holder)
        values = _published_type((*path, VALUES), kind.item_type, of_known and of_known.item_type, holder)
        return pa.map_(keys, values)
    if is_list(kind):
        of_known = known if known is not None and is_list(known) else None
        items = _published_type((*path, ITEMS), kind.value_type, of_known and of_known.value_type, holder)
        return _list_like(of_known, kind, pa.field("element", items))
    return known if known is not None and fits(path, Held(kind, holder), known) else kind


def _published_fields(
    path: ColumnPath, kind: pa.StructType, known: pa.StructType | tuple[()], holder: Holder
) -> list[pa.Field]:
    own, types = ({field.name: field.type for field in one} for one in (kind, known))
    return [
        pa.field(name, _published_type((*path, name), own.get(name, pa.null()), types.get(name), holder))
        for name in dict.fromkeys([*types, *own])
    ]


def _list_like(known: pa.DataType | None, kind: pa.DataType, items: pa.Field) -> pa.DataType:
    """A list as the known one is, unless that has one length only."""
    shape = known if known is not None and not pt.is_fixed_size_list(known) else kind
    if pt.is_fixed_size_list(shape):
        return pa.list_(items, shape.list_size)
    return pa.large_list(items) if pt.is_large_list(shape) else pa.list_(items)
