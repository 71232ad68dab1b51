"""Rows as they are published: with the table's types, and with text that readers can read.

Requests of a unit are built once all of its rows are known to be publishable: damage in a column that no
request reads would else be found when every row is paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.plan import InputReader, Plan, Unit
from airflow_provider_raydatallm.processor.input.types.convert import convert
from airflow_provider_raydatallm.processor.input.types.validity import find_invalid

#: What requests read of a unit is kept up to here while the unit is checked, and else read again.
_KEPT_BYTES = 32 << 20


def read_checked(reader: InputReader, plan: Plan, unit: Unit, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Reads columns of a unit.

    :raises SliceError: before the first row, when one of them cannot be published.
    """
    kept: list[pa.Table] | None = []
    kept_bytes = offset = 0

    def locate(row: int) -> str:
        return plan.locate_in(unit, offset + row)

    for table in reader.read(unit, list(dict.fromkeys([*plan.columns, *columns]))):
        as_published(plan, table, locate)
        offset += table.num_rows
        if kept is not None:
            kept.append(table.select(columns))
            kept_bytes += kept[-1].nbytes
            kept = kept if kept_bytes <= _KEPT_BYTES else None
    yield from reader.read(unit, columns) if kept is None else kept


def as_published(plan: Plan, table: pa.Table, locate: Callable[[int], str]) -> pa.Table:
    """
    :param locate: says where a row of the table is.
    :raises SliceError: naming the column, and where the row is.
    """
    columns = []
    for field in plan.schema:
        try:
            column = convert(table.column(field.name), field.type)
        except pa.ArrowException as e:
            raise SliceError(
                f"{locate(0)} or a later one: column {field.name!r} is no {field.type}, "
                f"as it is published: {str(e).strip()[:200]}. Leave it out with columns=, or give it a type "
                "in source.column_types",
                kind="input",
            ) from e
        if (invalid := find_invalid(column)) is not None:
            row, kind = invalid
            raise SliceError(
                f"{locate(row)}: column {field.name!r} {_why(kind)} leave the column out with columns=",
                kind="input",
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=plan.schema)


def _why(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"holds a decimal of more digits than {kind} has: write it with a wider type, or"
    return "holds text that is not valid UTF-8: set source.on_invalid_text='replace' to put U+FFFD there, or"
