"""Parquet files of several writers, with many settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from tests.oracle.dice import Dice
from tests.oracle.judges import connection, quiet, quoted

_COMPRESSIONS = ["snappy", "none", "zstd", "gzip", "lz4", "brotli"]


@dataclass(frozen=True)
class ParquetWriter:
    name: str = "pyarrow"
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, table: pa.Table, path: str) -> str:
        """Returns the name of the writer: pyarrow where another one cannot write such a table."""
        if self.name != "pyarrow":
            try:
                with quiet():
                    _WRITERS[self.name](table, path, **self.options)
                return self.name
            except BaseException as e:  # a panic of Rust is not an Exception
                if isinstance(e, (KeyboardInterrupt, SystemExit, NameError)):
                    raise
            pq.write_table(table, path)
            return "pyarrow"
        options = dict(self.options)
        try:
            pq.write_table(table, path, **options)
        except (pa.ArrowException, OSError, ValueError):  # an encoding or a version that has no such type
            options.pop("column_encoding", None)
            try:
                pq.write_table(table, path, **options)
            except (pa.ArrowException, OSError, ValueError):
                pq.write_table(table, path)
        return "pyarrow"


def draw_writer(dice: Dice, schema: pa.Schema) -> ParquetWriter:
    name = dice.pick(["pyarrow"] * 7 + ["duckdb", "polars", "pandas"])
    if name == "duckdb":
        return ParquetWriter(name, {
            "compression": dice.pick(["snappy", "zstd", "gzip", "uncompressed", "brotli", "lz4_raw"]),
            "version": dice.pick(["V1", "V2"]),
        })  # fmt: skip
    if name == "polars":
        return ParquetWriter(name, {
            "compression": dice.pick(["zstd", "snappy", "gzip", "uncompressed", "brotli", "lz4"]),
            "statistics": dice.pick([True, False, "full"]), "row_group_size": dice.pick([None, 1, 2]),
        })  # fmt: skip
    if name == "pandas":
        return ParquetWriter(name, {"indexed": dice.pick(["range", "text", "column"])})
    return ParquetWriter("pyarrow", _draw_options(dice, schema))


def _draw_options(dice: Dice, schema: pa.Schema) -> dict[str, Any]:
    options: dict[str, Any] = {
        "version": dice.pick(["2.6", "2.6", "2.4", "1.0"]),
        "data_page_version": dice.pick(["1.0", "2.0"]),
        "compression": dice.pick(_COMPRESSIONS),
        "row_group_size": dice.pick([None, 1, 2, 3]),
        "write_statistics": dice.pick([True, False]),
        "store_schema": dice.pick([True, True, False]),
        "use_compliant_nested_type": dice.pick([True, False]),
        "use_dictionary": dice.pick([True, False]),
    }
    match dice.pick(["", "", "", "int96", "spark", "decimals", "pages", "encodings", "encodings"]):
        case "int96":
            options["use_deprecated_int96_timestamps"] = True
        case "spark":
            options["flavor"] = "spark"
        case "decimals":
            options["store_decimal_as_integer"] = True
        case "pages":
            options |= {"data_page_size": 1, "write_batch_size": 1, "write_page_index": True}
        case "encodings":
            options["use_dictionary"] = False
            options["column_encoding"] = {
                f.name: encoding for f in schema if (encoding := _draw_encoding(dice, f.type)) is not None
            }
    return {name: value for name, value in options.items() if value is not None}


def _draw_encoding(dice: Dice, kind: pa.DataType) -> str | None:
    """An encoding of a flat column other than the usual one."""
    if pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_fixed_size_binary(kind):
        return dice.pick([None, "BYTE_STREAM_SPLIT"])
    if pt.is_integer(kind) or pt.is_temporal(kind):
        return dice.pick([None, "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind):
        return dice.pick([None, "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
    return "RLE" if pt.is_boolean(kind) and dice.upto(1) else None


def _write_duckdb(table: pa.Table, path: str, compression: str, version: str) -> None:
    connection().register("written", table)
    try:
        connection().sql(
            f"copy (from written) to {quoted(path)} (format parquet, compression {compression}, "
            f"parquet_version {version})"
        )
    finally:
        connection().unregister("written")


def _write_polars(table: pa.Table, path: str, **options: Any) -> None:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, **options)


def _write_pandas(table: pa.Table, path: str, indexed: str) -> None:
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    if indexed == "text":
        frame.index = pd.Index([f"row {i}" for i in range(len(frame))])
    elif indexed == "column":
        frame = frame.set_index(table.column_names[0])
    frame.to_parquet(path)


_WRITERS = {"duckdb": _write_duckdb, "polars": _write_polars, "pandas": _write_pandas}
