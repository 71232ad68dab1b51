"""The type with the same values that Parquet holds and every step of a slice works with.

A file may write the same values as several types: as a view, with a dictionary, in whole seconds. One of them
is plain. Each field may be null, at every depth: a file that lacks it is read as null there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.types as pt

#: Names of a list's items, and of a map's keys and values, in the paths of columns and in plain types.
ITEMS, KEYS, VALUES = "[]", "key", "value"
#: Steps from a column to a value in it: names of fields, and `ITEMS`, `KEYS`, `VALUES`.
ColumnPath = tuple[str, ...]

# Newer versions of Arrow have views.
_is_string_view, _is_binary_view, _is_list_view, _is_large_list_view = (
    getattr(pt, f"is_{name}_view", lambda kind: False) for name in ("string", "binary", "list", "large_list")
)
_MAX_DECIMAL128_DIGITS = 38


def plain_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind if is_uuid(kind) else plain_type(kind.storage_type)
    if pt.is_dictionary(kind):
        return plain_type(kind.value_type)
    if _is_string_view(kind):
        return pa.string()
    if _is_binary_view(kind):
        return pa.binary()
    if pt.is_list(kind) or _is_list_view(kind) or _is_large_list_view(kind):
        return pa.list_(_items(kind))
    if pt.is_large_list(kind):
        return pa.large_list(_items(kind))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_items(kind), kind.list_size)
    if pt.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    if pt.is_timestamp(kind) and kind.unit == "s":  # Parquet stores whole seconds as milliseconds
        return pa.timestamp("ms", kind.tz)
    if pt.is_time32(kind):
        return pa.time32("ms")
    if pt.is_date64(kind):
        return pa.date32()
    if pt.is_decimal(kind) and kind.precision <= _MAX_DECIMAL128_DIGITS:  # which every reader reads
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def children(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """The parts of a nested type, by their step in a path; [] for other types."""
    if pt.is_struct(kind):
        return [(field.name, field.type) for field in kind]
    if pt.is_map(kind):
        return [(KEYS, kind.key_type), (VALUES, kind.item_type)]
    return [(ITEMS, kind.value_type)] if is_list(kind) else []


def leaves(kind: pa.DataType, path: ColumnPath) -> Iterator[tuple[ColumnPath, pa.DataType]]:
    """The types that hold values, in Parquet's order of them."""
    parts = children(kind)
    if not parts:
        yield path, kind
    for step, part in parts:
        yield from leaves(part, (*path, step))


def type_at(schema: pa.Schema, path: ColumnPath) -> pa.DataType | None:
    """Returns a column's type, or that of one of its parts; None where there is none."""
    kind: pa.DataType | None = pa.struct(list(schema))
    for step in path:
        kind = dict(children(kind)).get(step) if kind is not None else None
    return kind


def replace_parts(
    kind: pa.DataType,
    replace: Callable[[ColumnPath, pa.DataType], pa.DataType | None],
    path: ColumnPath = (),
) -> pa.DataType:
    """Returns a plain type with others in place of the parts, or the type itself, for which `replace` returns
    one."""
    if (replaced := replace(path, kind)) is not None:
        return replaced
    parts = [replace_parts(part, replace, (*path, step)) for step, part in children(kind)]
    if not parts:
        return kind
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, part) for f, part in zip(kind, parts, strict=True)])
    if pt.is_map(kind):
        return pa.map_(*parts)
    items = pa.field("element", parts[0])
    if pt.is_fixed_size_list(kind):
        return pa.list_(items, kind.list_size)
    return pa.large_list(items) if pt.is_large_list(kind) else pa.list_(items)


def leaf_paths(schema: pa.Schema) -> list[ColumnPath]:
    return [path for field in schema for path, _ in leaves(field.type, (field.name,))]


def path_text(path: ColumnPath) -> str:
    """As people write it in `source.column_types`: `orders[].id`."""
    return ".".join(path).replace(f".{ITEMS}", ITEMS)


def outline(kind: pa.DataType) -> str:
    """A type in a sentence: without the names of fields, which may be keys of data."""
    if pt.is_struct(kind):
        return f"struct of {kind.num_fields} field{'' if kind.num_fields == 1 else 's'}"
    parts = [outline(part) for _, part in children(kind)]
    has_fields = parts != [str(part) for _, part in children(kind)]
    return f"{'map' if pt.is_map(kind) else 'list'} of {' to '.join(parts)}" if has_fields else str(kind)


def hidden_names(kind: pa.DataType) -> tuple[str, ...]:
    """What `outline` leaves out, as a text of rows."""
    return () if outline(kind) == str(kind) else (str(kind),)


def _items(kind: pa.DataType) -> pa.Field:
    return pa.field("element", plain_type(kind.value_type))
