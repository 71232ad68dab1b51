"""Queries and conditions in SQL over a slice's answered rows, run by DuckDB, which can reach nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow.dataset as ds

MEND = "Mend it and clear the task: the answered rows are kept, and none is asked again"
#: What a query calls the rows.
_TABLE = "answers"
#: A column of the rows' numbers.
_NUMBER = "__ray_llm_number"
#: It reads no file, no address and no variable of Python's. One that takes more memory ends: it fills neither
#: the node nor its disk.
_CONFINED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "threads": 1,
    "memory_limit": "1GB",
    "temp_directory": "",
}
#: A time without a zone is the same on all machines. A query permits itself nothing else.
_SETTINGS = "SET TimeZone = 'UTC'; SET lock_configuration = true"


def open_query(query: str) -> Callable[[ds.Dataset], Any]:
    """Returns what runs it: the value of its one row and column.

    :raises SliceError: when this machine has no DuckDB, or the text is not one query.
    """
    try:
        import duckdb
    except ImportError as e:
        raise SliceError(
            f"the gate of {query!r} needs DuckDB, which the Ray cluster lacks",
            kind="input",
            advice="Add duckdb to the cluster's image, or write the check as a function",
        ) from e
    try:
        (statement,) = duckdb.extract_statements(query)
        is_query = statement.type == duckdb.StatementType.SELECT
    except (duckdb.Error, ValueError) as e:
        raise _no_query(query, f": {e}" if isinstance(e, duckdb.Error) else "") from e
    if not is_query:
        raise _no_query(query)

    def run(rows: ds.Dataset) -> Any:
        with _reading(rows) as connection:
            found = connection.execute(query).fetchmany(2)
            columns = len(connection.description or ())
        if len(found) != 1 or columns != 1:
            rows_found = "several rows" if len(found) > 1 else f"{len(found)} row(s)"
            raise SliceError(
                f"the gate of {query!r} found {rows_found} of {columns} column(s), and judges one number",
                kind="input",
                advice=MEND,
            )
        return found[0][0]

    return run


def rows_where(rows: ds.Dataset, condition: str) -> np.ndarray:
    """Returns the numbers of the rows, from 0, that a condition selects.

    :raises SliceError: when this machine has no DuckDB, or the text is no condition on such rows.
    """
    try:
        import duckdb
    except ImportError as e:
        raise SliceError(
            f"to find the rows where {condition} needs DuckDB, which is not here",
            kind="input",
            advice="Install duckdb here, or in the Ray cluster's image where a task does it",
        ) from e
    # Rows are numbered as they are read, before any of them is left out.
    numbered = f"SELECT *, row_number() OVER () - 1 AS {_NUMBER} FROM {_TABLE}"
    query = f"SELECT {_NUMBER} FROM ({numbered}) AS {_TABLE} WHERE (\n{condition}\n)"
    try:
        duckdb.SQLExpression(condition)  # it ends no bracket of the query
        with _reading(rows.schema.empty_table()) as connection:
            connection.execute(query)
    except duckdb.Error as e:
        raise _no_condition(condition, rows, f": {str(e).splitlines()[0]}") from e
    try:
        with _reading(rows) as connection:
            numbers: np.ndarray = connection.execute(query).fetchnumpy()[_NUMBER]
    except duckdb.Error as e:
        raise _no_condition(condition, rows, row_texts=(str(e),)) from e
    return numbers


def _no_condition(
    condition: str, rows: ds.Dataset, why: str = "", row_texts: Sequence[str] = ()
) -> SliceError:
    import duckdb

    with duckdb.connect(":memory:") as connection:
        names = _readable(connection, rows.schema).names
    return SliceError(
        f"{condition!r} is no condition on the answered rows{why}",
        kind="input",
        advice=f"Write what SQL has after WHERE, such as answer IS NULL, over the columns {', '.join(names)}",
        row_texts=row_texts,
    )


@contextmanager
def _reading(rows: ds.Dataset | pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    with duckdb.connect(":memory:", config=_CONFINED) as connection:
        connection.execute(_SETTINGS)
        readable = _readable(connection, rows.schema)
        is_table = isinstance(rows, pa.Table)
        connection.register(
            _TABLE, rows.select(readable.names) if is_table else rows.replace_schema(readable)
        )
        yield connection


def _readable(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> pa.Schema:
    return pa.schema([column for column in schema if _can_read(connection, column)])


def _can_read(connection: duckdb.DuckDBPyConnection, column: pa.Field) -> bool:
    """Whether it knows the column's type: with half floats, say, it reads no other column either."""
    import duckdb

    try:
        connection.from_arrow(pa.schema([column]).empty_table())
    except duckdb.NotImplementedException:
        return False
    return True


def _no_query(query: str, why: str = "") -> SliceError:
    return SliceError(
        f"the gate of {query!r} is not one SELECT{why}",
        kind="input",
        advice=f"Write one that gives one number, such as SELECT avg(length(answer)) FROM {_TABLE}",
    )
