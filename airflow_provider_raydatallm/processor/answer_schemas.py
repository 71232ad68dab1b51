"""One schema for tables of answers that tasks wrote by themselves, and tables brought into it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from airflow_provider_raydatallm.processor.value_types import (
    TypeMismatch,
    arrow_type,
    coerce,
    from_arrow,
    merge,
)


def unify_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The schema whose columns hold those of all schemas.

    :raises TypeMismatch: naming the column.
    """
    fields: dict[str, pa.DataType] = {}
    for schema in dict.fromkeys(s.remove_metadata() for s in schemas):
        for field in schema:
            known = fields.setdefault(field.name, field.type)
            if known != field.type:
                try:
                    fields[field.name] = arrow_type(merge(from_arrow(known), from_arrow(field.type)))
                except TypeMismatch as e:
                    raise TypeMismatch(f"column {field.name!r}: {e}") from e
    return pa.schema(list(fields.items()))


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns of a schema that `unify_schemas` made of its own and others."""
    if table.schema.equals(schema):
        return table
    names = set(table.schema.names)
    columns = [
        _cast(table.column(f.name), f.type) if f.name in names else pa.nulls(table.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if not (pa.types.is_nested(kind) and _has_null_type(kind)):
        return column.cast(kind)
    # Arrow's cast makes invalid arrays of lists whose items stay of type null.
    value_type = from_arrow(kind)
    values = [coerce(value, value_type) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(values, kind)])


def _has_null_type(kind: pa.DataType) -> bool:
    children = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_null(kind) or any(map(_has_null_type, children))
