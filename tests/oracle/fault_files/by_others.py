"""Files that DuckDB, Polars and pandas write, and texts."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl

from tests.oracle.cells import Cell, struct
from tests.oracle.fault_files.fault_file import FaultFile, Files, WriteFiles, a_list, local
from tests.oracle.judges import connection, quoted

_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def _duckdb(value: str, *cells: Cell) -> WriteFiles:
    def write(folder: Path) -> Files:
        target = quoted(str(folder / "a.parquet"))
        connection().sql(f"copy (select {value} as x) to {target} (format parquet)")
        return {"a.parquet": {"x": list(cells)}}

    return write


def _polars(series: Callable[[], pl.Series], *cells: Cell) -> WriteFiles:
    def write(folder: Path) -> Files:
        series().alias("x").to_frame().write_parquet(folder / "a.parquet")
        return {"a.parquet": {"x": list(cells)}}

    return write


def _pandas(values: Callable[[], Any], *cells: Cell) -> WriteFiles:
    def write(folder: Path) -> Files:
        pd.DataFrame({"x": values()}).to_parquet(folder / "a.parquet")
        return {"a.parquet": {"x": list(cells)}}

    return write


def _text(name: str, text: str, *cells: Cell) -> WriteFiles:
    def write(folder: Path) -> Files:
        (folder / name).write_bytes(text.encode())
        return {name: {"x": list(cells)}}

    return write


BY_OTHERS = [
    FaultFile("DuckDB's INTERVAL", "12 bytes for Arrow", "refuse", _duckdb("INTERVAL 1 month", b"")),
    FaultFile(
        "DuckDB's INTERVAL in a struct", "12 bytes for Arrow", "refuse",
        _duckdb("{'a': [INTERVAL 1 day]}", b""),
    ),
    FaultFile("DuckDB's TIMETZ", "a time for Arrow", "refuse", _duckdb("'12:00:00+02'::TIMETZ", None)),
    FaultFile(
        "DuckDB's UUID in a list", "16 bytes for Arrow", "publish",
        _duckdb(f"['{_ID}'::UUID]", a_list(("uuid", _ID.bytes))),
    ),
    FaultFile(
        "DuckDB's TIME_NS", "nanoseconds", "publish",
        _duckdb("TIME_NS '12:00:00.123456789'", ("time", 43_200_123_456_789)), prompt="x",
    ),
    FaultFile(
        "DuckDB's TIMESTAMP_NS", "nanoseconds", "publish",
        _duckdb("TIMESTAMP_NS '2026-01-01 00:00:00.123456789'", local(2026, 1, 1, ns=123_456_789)),
        prompt="x",
    ),
    FaultFile("DuckDB's ENUM", "written as text", "publish", _duckdb("'a'::ENUM('a', 'b')", "a")),
    FaultFile("DuckDB's VARIANT", "Polars refuses it", "either", _duckdb("'a'::VARIANT", None)),
    FaultFile(
        "DuckDB's infinite date", "beyond Python", "publish", _duckdb("DATE 'infinity'", ("date", 2**31 - 1))
    ),
    FaultFile(
        "Polars' Int128", "Arrow has none", "refuse",
        _polars(lambda: pl.Series([2**100], dtype=pl.Int128), 2**100),
    ),
    FaultFile(
        "Polars' categories in structs in lists", "pola-rs/polars#23328", "publish", _polars(
            lambda: pl.Series([[], [{"c": "x"}]], dtype=pl.List(pl.Struct({"c": pl.Categorical()}))),
            a_list(), a_list(struct({"c": "x"})),
        ),
    ),
    FaultFile(
        "Polars' durations", "only Arrow's schema says so", "publish",
        _polars(lambda: pl.Series([dt.timedelta(hours=1)]), ("duration", 3600 * 10**9)), prompt="x",
    ),
    FaultFile(
        "Polars' time", "nanoseconds", "publish",
        _polars(lambda: pl.Series([dt.time(12, 0, 0, 1)]), ("time", 43_200_000_001_000)), prompt="x",
    ),
    FaultFile(
        "pandas' periods", "stored as integers", "refuse",
        _pandas(lambda: pd.period_range("2026-01", periods=2, freq="M"), 672, 673),
    ),
    FaultFile(
        "pandas' intervals", "an extension of structs", "either",
        _pandas(lambda: pd.arrays.IntervalArray.from_breaks([0, 1]), struct({"left": 0, "right": 1})),
    ),
    FaultFile(
        "JSON list that begins with null", "apache/arrow#51305, huggingface/datasets#5531", "publish",
        _text("a.jsonl", '{"x":[null,1]}\n{"x":[null]}\n', a_list(None, 1), a_list(None)),
    ),
    FaultFile(
        "JSON nulls, then lists", "apache/arrow#9783, apache/arrow#9102", "publish",
        _text("a.jsonl", '{"x":null}\n{"x":[]}\n{"x":[[]]}\n', None, a_list(), a_list(a_list())),
    ),
    FaultFile(
        "JSON object without keys", "null in all columns", "publish",
        _text("a.jsonl", '{"x":1}\n{}\n', 1, None),
    ),
    FaultFile(
        "JSON key given twice", "RFC 8259: names should be unique", "refuse",
        _text("a.jsonl", '{"x":1,"x":2}\n', 2),
    ),
    FaultFile(
        "CSV column named twice", "pandas-dev/pandas#52408", "refuse", _text("a.csv", "x,x\n1,2\n", "1")
    ),
    FaultFile(
        "CSV value that begins with a byte order mark", "Arrow takes it for the file's", "publish",
        _text("a.csv", "x\n\ufeffa\n", "\ufeffa"),
    ),
]  # fmt: skip
