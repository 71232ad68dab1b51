"""Queries in SQL over a slice's answered rows, run by DuckDB, which can reach nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as ds

MEND = "Mend it and clear the task: the answered rows are kept, and none is asked again"
#: What a query calls the rows.
_TABLE = "answers"
#: It reads no file, no address and no variable of Python's, and cannot permit itself to. One that takes more
#: memory ends: it fills neither the node nor its disk.
_CONFINED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "threads": 1,
    "memory_limit": "1GB",
    "temp_directory": "",
    "lock_configuration": True,
}


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
        with duckdb.connect(":memory:", config=_CONFINED) as connection:
            readable = [column for column in rows.schema if _can_read(connection, column)]
            connection.register(_TABLE, rows.replace_schema(pa.schema(readable)))
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
