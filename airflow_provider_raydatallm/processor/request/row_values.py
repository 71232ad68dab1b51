"""Rows of a table as Python values, as prompts and functions get them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.input.types.convert import convert_parts
from airflow_provider_raydatallm.processor.input.types.plain import ColumnPath, leaves, replace_parts
from airflow_provider_raydatallm.processor.input.types.values import range_of, values_at

#: By the unit of a time of day.
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def read_rows(table: pa.Table) -> tuple[list[dict[str, Any]], dict[int, SliceError]]:
    """Returns rows as Python values, and why rows cannot be read, by their index."""
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)], {}
    table = _with_readable_times(table)
    columns: list[list[Any]] = []
    unreadable: dict[int, SliceError] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values, problems = _read_cells(column)
        columns.append(values)
        for i, problem in problems.items():
            error = SliceError(
                f"column {name!r} holds a value that Python cannot read",
                kind="input",
                place=Place(column=name),
                row_texts=(str(problem),),
            )
            unreadable.setdefault(i, error)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)], unreadable


def _read_cells(column: pa.ChunkedArray) -> tuple[list[Any], dict[int, Exception | str]]:
    problems: dict[int, Exception | str] = {}
    if _has_late_time(column):
        rows = range(len(column))
        problems = dict.fromkeys((i for i in rows if _has_late_time(column[i : i + 1])), "a time of 24:00:00")
    try:
        return column.to_pylist(), problems
    except Exception:
        values: list[Any] = []
        for i, cell in enumerate(column):
            value = None
            try:
                value = cell.as_py()
            except Exception as e:
                problems[i] = e
            values.append(value)
        return values, problems


def _has_late_time(column: pa.ChunkedArray) -> bool:
    """Whether there is a time of day that Python takes for one of the next day."""
    return any(
        (found := range_of(values)) is not None and found.high >= _DAY[kind.unit]
        for path, kind in leaves(column.type, ())
        if pt.is_time(kind)
        for values in values_at(column, path)
    )


def _with_readable_times(table: pa.Table) -> pa.Table:
    """Times of day in nanoseconds as text: Python's have microseconds."""
    columns = []
    for column in table.itercolumns():
        kind = replace_parts(column.type, _readable_type)
        is_readable = kind == column.type
        chunks = column.chunks if is_readable else [_as_text(chunk, kind) for chunk in column.chunks]
        columns.append(pa.chunked_array(chunks, kind))
    return pa.table(columns, names=table.column_names)


def _readable_type(_: ColumnPath, part: pa.DataType) -> pa.DataType | None:
    return pa.string() if pt.is_time64(part) and part.unit == "ns" else None


def _as_text(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_nested(kind):
        return convert_parts(array, kind, _as_text)
    if array.type == kind:
        return array
    text = pc.replace_substring_regex(array.cast(kind), r"\.0+$", "")
    return pc.replace_substring_regex(text, r"(\.[0-9]*[1-9])0+$", r"\1")
