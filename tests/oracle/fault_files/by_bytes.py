"""Files of other writers, and of old ones, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.oracle.cells import Cell
from tests.oracle.cells import struct as fields
from tests.oracle.fault_files.fault_file import FaultFile, Files, WriteFiles, a_list
from tests.oracle.raw_parquet import (
    BOOLEAN,
    BYTE_ARRAY,
    DECIMAL,
    DOUBLE,
    ENUM,
    FIXED,
    INT32,
    INT64,
    INT96,
    INTERVAL,
    JSON,
    LIST,
    MAP,
    MAP_KEY_VALUE,
    OPTIONAL,
    REPEATED,
    REQUIRED,
    TIMESTAMP_MILLIS,
    UINT_8,
    UINT_64,
    UTF8,
    Chunk,
    Node,
    write_parquet,
)  # fmt: skip

_NAN = struct.pack("<d", float("nan"))
_ONE = struct.pack("<q", 1)
_MUCH = struct.pack("<i", 1_178_657_792)


def _raw(column: Node, chunks: Sequence[Chunk], cells: list[Cell], *, rows: int | None = None) -> WriteFiles:
    def write(folder: Path) -> Files:
        count = len(cells) if rows is None else rows
        write_parquet(folder / "a.parquet", [column], [(count, chunks)])
        return {"a.parquet": {"x": cells}}

    return write


def _flat(kind: int, values: Sequence[Any], cells: list[Cell], **settings: Any) -> WriteFiles:
    """A required column. `settings`: of its node, and `statistics`."""
    chunk = Chunk("x", kind, values, statistics=settings.pop("statistics", {}))
    return _raw(Node("x", REQUIRED, kind, **settings), [chunk], cells)


def _listed(*children: Node) -> Node:
    return Node("x", OPTIONAL, None, children, converted=LIST)


_MAP = Node("x", OPTIONAL, None, [Node("map", REPEATED, None, [
    Node("key", REQUIRED, BYTE_ARRAY, converted=UTF8), Node("value", OPTIONAL, INT32),
], converted=MAP_KEY_VALUE)], converted=MAP)  # fmt: skip


def _without_columns(folder: Path) -> Files:
    write_parquet(folder / "a.parquet", [], [(3, [])])
    return {"a.parquet": {}}


def _groups_without_rows(folder: Path) -> Files:
    groups = [(n, [Chunk("x", INT32, values)]) for n, values in ((1, [1]), (0, []), (2, [2, 3]), (0, []))]
    write_parquet(folder / "a.parquet", [Node("x", REQUIRED, INT32)], groups)
    return {"a.parquet": {"x": [1, 2, 3]}}


def _no_group(folder: Path) -> Files:
    write_parquet(folder / "a.parquet", [Node("x", REQUIRED, INT32)], [(1, [Chunk("x", INT32, [1])])])
    write_parquet(folder / "b.parquet", [Node("x", REQUIRED, INT32)], [])
    return {"a.parquet": {"x": [1]}, "b.parquet": {"x": []}}


def _untrue_statistics(folder: Path) -> Files:
    """A footer that says 1 to 1, as if the values fitted any integer; and uint64."""
    chunk = Chunk("x", INT64, [2**62, -1], statistics={3: 0, 5: _ONE, 6: _ONE})
    write_parquet(folder / "a.parquet", [Node("x", REQUIRED, INT64)], [(2, [chunk])])
    other = Node("x", REQUIRED, INT64, converted=UINT_64)
    write_parquet(folder / "b.parquet", [other], [(1, [Chunk("x", INT64, [-1])])])
    return {"a.parquet": {"x": [2**62, -1]}, "b.parquet": {"x": [2**64 - 1]}}


def _int96(day: int, ns: int) -> bytes:
    return ns.to_bytes(8, "little") + (2_440_588 + day).to_bytes(4, "little")


BY_BYTES = [
    FaultFile(
        "row groups without rows", "ClickHouse/ClickHouse#107746, apache/parquet-java#2728", "publish",
        _groups_without_rows,
    ),
    FaultFile(
        "file without row groups", "xitongsys/parquet-go#176, apache/arrow#7140", "publish", _no_group
    ),
    FaultFile(
        "rows without columns", "dask/fastparquet#361, NVIDIA/cudf#22935", "refuse", _without_columns
    ),
    FaultFile(
        "list of two levels", "apache/arrow#42763 (PARQUET-1122)", "publish", _raw(
            _listed(Node("array", REPEATED, INT32)),
            [Chunk("x/array", INT32, [1, 2, 3], [2, 2, 0, 1, 2], [0, 1, 0, 0, 0], 2, 1)],
            [a_list(1, 2), None, a_list(), a_list(3)],
        ),
    ),
    FaultFile(
        "list of lists of two levels", "apache/arrow-rs#6756, apache/parquet-format#465", "publish", _raw(
            _listed(Node("array", REPEATED, None, [Node("array", REPEATED, INT32)], converted=LIST)),
            [Chunk("x/array/array", INT32, [1, 2, 3], [3, 3, 3], [0, 2, 1], 3, 2)],
            [a_list(a_list(1, 2), a_list(3))],
        ),
    ),
    FaultFile(
        "list of Hive's bags", "apache/spark#7209 (SPARK-8811)", "publish", _raw(
            _listed(Node("bag", REPEATED, None, [Node("array_element", OPTIONAL, INT32)])),
            [Chunk("x/bag/array_element", INT32, [1, 3], [3, 2, 3], [0, 1, 0], 3, 1)],
            [a_list(1, None), a_list(3)],
        ),
    ),
    FaultFile(
        "list of structs of one field, of two levels", "apache/hudi#19782, apache/parquet-java#1976",
        "publish", _raw(
            _listed(Node("array", REPEATED, None, [Node("a", REQUIRED, INT32)])),
            [Chunk("x/array/a", INT32, [1, 2], [2, 2], [0, 1], 2, 1)],
            [a_list(fields({"a": 1}), fields({"a": 2}))],
        ),
    ),
    FaultFile(
        "repeated without a list around it", "apache/parquet-format#466", "publish", _raw(
            Node("x", REPEATED, INT32), [Chunk("x", INT32, [1, 2, 3], [1, 1, 0, 1], [0, 1, 0, 0], 1, 1)],
            [a_list(1, 2), a_list(), a_list(3)],
        ),
    ),
    FaultFile(
        "map of MAP_KEY_VALUE", "apache/parquet-java#1604 (PARQUET-113)", "publish", _raw(
            _MAP,
            [
                Chunk("x/map/key", BYTE_ARRAY, [b"a", b"b"], [2, 2, 0], [0, 1, 0], 2, 1),
                Chunk("x/map/value", INT32, [1], [3, 2, 0], [0, 1, 0], 3, 1),
            ],
            [("map", (("a", 1), ("b", None))), None],
        ),
    ),
    FaultFile(
        "TIMESTAMP_MILLIS of old files", "apache/arrow-rs#4308, deephaven/deephaven-core#3588", "publish",
        _flat(INT64, [1000], [("instant", 10**9)], converted=TIMESTAMP_MILLIS),
        others={"x": [("local", 10**9)]},
    ),
    FaultFile(
        "local timestamp", "aloneguid/parquet-dotnet#600, apache/doris#33217", "publish",
        _flat(INT64, [1000], [("local", 10**9)], logical=(8, {1: False, 2: {1: {}}})),
    ),
    FaultFile(
        "time that is adjusted to UTC", "DuckDB's TIMETZ", "refuse",
        _flat(INT64, [1000], [("time", 10**6)], logical=(7, {1: True, 2: {2: {}}})),
    ),
    FaultFile(
        "INT96 of the day before, and of over a day", "apache/spark#8674 (SPARK-10522)", "publish", _flat(
            INT96, [_int96(-1, 86_399 * 10**9), _int96(0, 90_000 * 10**9)],
            [("local", -(10**9)), ("local", 90_000 * 10**9)],
        ), prompt="x",
    ),
    FaultFile(
        "decimal in as few bytes as it needs", "duckdb/duckdb#10148", "publish", _flat(
            BYTE_ARRAY, [b"\xff\x85", b"\x01"], [Decimal("-1.23"), Decimal("0.01")],
            converted=DECIMAL, precision=20, scale=2,
        ),
    ),
    FaultFile(
        "decimal in nine bytes", "duckdb/duckdb#2262", "publish", _flat(
            FIXED, [(-12345).to_bytes(9, "big", signed=True)], [Decimal("-123.45")],
            converted=DECIMAL, length=9, precision=20, scale=2,
        ),
    ),
    FaultFile(
        "decimal of more digits than its type", "readers see 1234.56, 1.23E+3 and -76.16", "refuse",
        _flat(INT32, [123_456], [Decimal("1234.56")], converted=DECIMAL, precision=3, scale=2),
    ),
    FaultFile(
        "decimal with untrue statistics", "hyparam/hyparquet-writer#38", "publish", _flat(
            INT32, [12_345], [Decimal("123.45")], converted=DECIMAL, precision=6, scale=2,
            statistics={5: _MUCH, 6: _MUCH},
        ),
    ),
    FaultFile("integers with untrue statistics", "duckdb/duckdb#23504", "either", _untrue_statistics),
    FaultFile(
        "statistics that are no numbers", "PARQUET-1222", "publish",
        _flat(DOUBLE, [1.5], [1.5], statistics={5: _NAN, 6: _NAN}),
    ),
    FaultFile(
        "unsigned integer beyond its type", "duckdb/duckdb#15221", "either",
        _flat(INT32, [300], [44], converted=UINT_8),
    ),
    FaultFile(
        "ENUM", "text by the format, bytes for Arrow", "publish",
        _flat(BYTE_ARRAY, [b"a"], ["a"], converted=ENUM),
    ),
    FaultFile(
        "JSON", "text by the format", "publish",
        _flat(BYTE_ARRAY, [b'{"a": 1}'], ['{"a": 1}'], converted=JSON),
    ),
    FaultFile(
        "interval of old files", "12 bytes for Arrow", "refuse",
        _flat(FIXED, [b"\1\0\0\0\2\0\0\0\3\0\0\0"], [b""], converted=INTERVAL, length=12),
    ),
    FaultFile(
        "float16", "apache/arrow-rs#5154", "publish",
        _flat(FIXED, [b"\0\x3e"], [1.5], length=2, logical=(15, {})),
    ),
    FaultFile(
        "row group that counts more rows than it has", "DuckDB: metadata is corrupt", "refuse",
        _raw(Node("x", REQUIRED, INT32), [Chunk("x", INT32, [1, 2])], [1, 2, None], rows=3),
    ),
    FaultFile(
        "booleans", "plain bits", "publish",
        _flat(BOOLEAN, [True, False, True], [("bool", True), ("bool", False), ("bool", True)]),
    ),
]  # fmt: skip
