"""Readers that are not ours: DuckDB, Polars and pyarrow, with which pandas reads Parquet. Each shows a file,
or the files of a folder, as columns of cells."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ["RUST_BACKTRACE"] = "0"
os.environ["POLARS_IGNORE_TIMEZONE_PARSE_ERROR"] = "1"  # of zones such as +05:30

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from tests.oracle.cells import Cell, cells, is_any_list

Columns = dict[str, list[Cell]]


@dataclass(frozen=True)
class View:
    """What a reader sees: cells by column, or why it sees none."""

    columns: Columns | None
    problem: str = ""
    #: The reader's own names of types that Arrow has no names for.
    types: Mapping[str, str] | None = None

    def __bool__(self) -> bool:
        return self.columns is not None


def read_parquet(path: str) -> dict[str, View]:
    """What each reader sees in an input file."""
    arrow = see(lambda: _arrow_columns(path))
    like = _schema(path)
    duck = see(lambda: columns_of(duck_table(f"read_parquet({quoted(path)}, hive_partitioning=false)"), like))
    if duck:
        relation = connection().sql(f"from read_parquet({quoted(path)}, hive_partitioning=false)")
        types = dict(zip(relation.columns, map(str, relation.types), strict=True))
        duck = View(duck.columns, types=types)
    polars = see(lambda: columns_of(pl.read_parquet(path, hive_partitioning=False).to_arrow(), like))
    return {"pyarrow": arrow, "duckdb": duck, "polars": polars}


def read_published(folder: str) -> tuple[pa.Table, dict[str, View]]:
    """The published folder as pyarrow reads it, and what each reader sees in it."""
    table = pq.read_table(folder, partitioning=None)
    like = table.schema
    files = f"{folder}/*.parquet"
    return table, {
        "pyarrow": see(lambda: columns_of(table, like)),
        "duckdb": see(lambda: columns_of(duck_table(_scan(files)), like)),
        "polars": see(
            lambda: columns_of(pl.scan_parquet(folder, hive_partitioning=False).collect().to_arrow(), like)
        ),
    }  # fmt: skip


def _scan(path: str) -> str:
    return f"read_parquet({quoted(path)}, hive_partitioning=false)"


def has_int96(path: str) -> bool:
    schema = pq.ParquetFile(path).schema
    return any(schema.column(i).physical_type == "INT96" for i in range(len(schema)))


def duck_table(source: str) -> pa.Table:
    return connection().sql(f"from {source}").to_arrow_table()


@cache
def connection() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect(config={"threads": 1})
    made.sql("set timezone = 'UTC'")
    return made


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _schema(path: str) -> pa.Schema:
    try:
        return pq.ParquetFile(path).schema_arrow
    except (pa.ArrowException, OSError):
        return pa.schema([])


def _arrow_columns(path: str) -> Columns:
    """Timestamps of INT96 in nanoseconds where these do not overflow, else in microseconds."""
    file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    table = file.read()
    found = columns_of(table, None)
    if has_int96(path):
        exact = columns_of(pq.ParquetFile(path).read(), None)
        for name in found:
            found[name] = [_finer(us, ns) for us, ns in zip(found[name], exact[name], strict=True)]
    return found


def _finer(us: Cell, ns: Cell) -> Cell:
    """The instant in nanoseconds, where that did not overflow, at any depth."""
    if not isinstance(us, (tuple, list)) or not isinstance(ns, (tuple, list)) or len(us) != len(ns):
        return us
    if us[:1] == ns[:1] and us[:1] in (("local",), ("instant",)):
        return ns if 0 <= ns[1] - us[1] < 1000 else us
    return type(us)(_finer(a, b) for a, b in zip(us, ns, strict=True))


def columns_of(table: pa.Table, like: pa.Schema | None = None) -> Columns:
    """:raises ValueError: for columns of one name."""
    if len(set(table.column_names)) < len(table.column_names):
        raise ValueError(f"it has columns of one name: {table.column_names}")
    types = {f.name: f.type for f in like} if like is not None else {}
    return {
        name: cells(column, types.get(name))
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def see(read: Callable[[], Columns]) -> View:
    try:
        with quiet():
            return View(read())
    except BaseException as e:  # a panic of Rust is not an Exception
        if isinstance(e, (KeyboardInterrupt, SystemExit, NameError, AttributeError)):
            raise
        return View(None, f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what Rust prints of a panic, which is an exception here."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    if pt.is_dictionary(kind):
        return leaf_types(kind.value_type)
    if pt.is_struct(kind):
        return [leaf for field in kind for leaf in leaf_types(field.type)]
    if pt.is_map(kind):
        return [*leaf_types(kind.key_type), *leaf_types(kind.item_type)]
    if is_any_list(kind):
        return leaf_types(kind.value_type)
    return [kind]


def depth_of(kind: pa.DataType) -> int:
    if pt.is_struct(kind):
        return 1 + max((depth_of(field.type) for field in kind), default=0)
    if pt.is_map(kind):
        return 1 + depth_of(kind.item_type)
    return 1 + depth_of(kind.value_type) if is_any_list(kind) else 0
