"""Files that pyarrow writes."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.oracle.cells import MINUS_ZERO, NAN, Cell, struct
from tests.oracle.fault_files.fault_file import FaultFile, Files, WriteFiles, a_list, local

_FAR = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(2006, 1, 2, 7, 4, 5), None]
_FAR_CELLS = [local(9999, 12, 31, 23, 59, 59, 999999), local(2006, 1, 2, 7, 4, 5), None]
_PAIR = pa.struct([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int32(), nullable=False)])
_NULL_FIELD = pa.list_(pa.struct([("b", pa.null())]))
_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff").bytes
_DELTA = {"column_encoding": "DELTA_BINARY_PACKED", "use_dictionary": False}
_SPLIT = {"column_encoding": "BYTE_STREAM_SPLIT", "use_dictionary": False}


def _column(array: pa.Array, cells: list[Cell], **options: Any) -> WriteFiles:
    def write(folder: Path) -> Files:
        pq.write_table(pa.table({"x": array}), folder / "a.parquet", **options)
        return {"a.parquet": {"x": cells}}

    return write


def _dots(folder: Path) -> Files:
    columns = {"a.b": pa.array([1, 2]), "a": pa.array([{"b": 3, "c": 4}, None])}
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return {"a.parquet": {"a.b": [1, 2], "a": [struct({"b": 3, "c": 4}), None]}}


def _fields_in_another_order(folder: Path) -> Files:
    pq.write_table(pa.table({"x": [{"a": 1, "b": 2}]}), folder / "a.parquet")
    other = pa.array([{"b": 4, "a": 3}], pa.struct([("b", pa.int64()), ("a", pa.int64())]))
    pq.write_table(pa.table({"x": other}), folder / "b.parquet")
    return {"a.parquet": {"x": [struct({"a": 1, "b": 2})]}, "b.parquet": {"x": [struct({"a": 3, "b": 4})]}}


def _two_of_one_name(folder: Path) -> Files:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), folder / "a.parquet")
    return {"a.parquet": {"x": [1]}}


def _invalid_text(folder: Path) -> Files:
    array = pa.Array.from_buffers(pa.string(), 2, pa.array([b"fine", b"caf\xe9"], pa.binary()).buffers())
    pq.write_table(pa.table({"x": array}), folder / "a.parquet")
    return {"a.parquet": {"x": ["fine", ("invalid text", b"caf\xe9")]}}


BY_ARROW = [
    FaultFile(
        "INT96 of year 9999", "apache/arrow-rs#982, apache/datafusion#1359, StarRocks/starrocks#22355",
        "publish", prompt="x", write_files=_column(
            pa.array(_FAR, pa.timestamp("us")), _FAR_CELLS, use_deprecated_int96_timestamps=True
        ),
    ),
    FaultFile(
        "INT96 of year 9999 in lists and structs", "NVIDIA/cudf#8070", "publish", prompt="x",
        write_files=_column(
            pa.array([{"a": _FAR}], pa.struct([("a", pa.list_(pa.timestamp("us")))])),
            [struct({"a": a_list(*_FAR_CELLS)})], flavor="spark",
        ),
    ),
    FaultFile(
        "list of structs with a field of nulls", "apache/arrow#43838, apache/arrow#44881, "
        "pandas-dev/pandas#58867, pola-rs/polars#8260", "publish", _column(
            pa.array([[{"b": None}, {"b": None}], [], None, [None]], _NULL_FIELD),
            [a_list(struct({}), struct({})), a_list(), None, a_list(None)],
        ),
    ),
    FaultFile("column of nulls", "pola-rs/polars#18079", "publish", _column(pa.nulls(2), [None, None])),
    FaultFile(
        "structs of lists", "pola-rs/polars#6501", "publish", _column(
            pa.array([{"bar": [], "baz": [1, 2]}, {"bar": [100], "baz": None}]),
            [struct({"bar": a_list(), "baz": a_list(1, 2)}), struct({"bar": a_list(100)})],
        ),
    ),
    FaultFile(
        "list over several pages", "pola-rs/polars#11548", "publish", _column(
            pa.array([[float(i) for i in range(500)]] * 3), [a_list(*map(float, range(500)))] * 3,
            data_page_size=64, write_batch_size=16,
        ),
    ),
    FaultFile(
        "list of required structs", "apache/arrow#5314 (ARROW-3933), apache/arrow#30043", "publish", _column(
            pa.array([[{"a": "x", "b": 1}], [], None], pa.list_(pa.field("item", _PAIR, nullable=False))),
            [a_list(struct({"a": "x", "b": 1})), a_list(), None],
        ),
    ),
    FaultFile(
        "struct with a required child", "as Iceberg, Avro and protobuf write it", "publish",
        _column(pa.array([{"a": "x", "b": 1}, None], _PAIR), [struct({"a": "x", "b": 1}), None]),
    ),
    FaultFile(
        "byte stream split with nulls", "apache/arrow#41562, apache/parquet-java#2739", "publish", _column(
            pa.array([1.5, None, -0.0, float("nan")] * 3, pa.float32()), [1.5, None, MINUS_ZERO, NAN] * 3,
            **_SPLIT, data_page_version="2.0",
        ),
    ),
    FaultFile(
        "fixed-size bytes with nulls", "duckdb/duckdb#17574, apache/arrow-go#1255", "publish", _column(
            pa.array([None, b"x" * 12, b"y" * 12], pa.binary(12)), [None, b"x" * 12, b"y" * 12],
            **_SPLIT, data_page_size=12, write_batch_size=1,
        ),
    ),
    FaultFile(
        "delta-encoded extremes", "duckdb/duckdb#10279", "publish",
        _column(pa.array([-(2**63), 2**63 - 1, 0, None]), [-(2**63), 2**63 - 1, 0, None], **_DELTA),
    ),
    FaultFile(
        "delta-encoded page of nulls", "questdb/questdb#7212, apache/iceberg#17017", "publish", _column(
            pa.array([None, None, "a"]), [None, None, "a"], column_encoding="DELTA_BYTE_ARRAY",
            use_dictionary=False, data_page_version="2.0", data_page_size=1, write_batch_size=2,
        ),
    ),
    FaultFile(
        "sparse nulls in small delta pages", "pola-rs/polars#28536", "publish", _column(
            pa.array([None if i == 30 else i for i in range(200)]),
            [None if i == 30 else i for i in range(200)], **_DELTA, data_page_size=64, write_batch_size=10,
        ),
    ),
    FaultFile(
        "booleans as runs", "pages of version 2", "publish", _column(
            pa.array([True] * 20 + [None, False] * 5), [("bool", True)] * 20 + [None, ("bool", False)] * 5,
            data_page_version="2.0", column_encoding="RLE", use_dictionary=False,
        ),
    ),
    FaultFile(
        "dictionary of large texts in lists", "pola-rs/polars#23328", "publish", _column(
            pa.array([[], ["x"], None, ["x", None]], pa.list_(pa.large_string())),
            [a_list(), a_list("x"), None, a_list("x", None)],
        ),
    ),
    FaultFile(
        "decimals as integers", "duckdb/duckdb#2261", "publish", _column(
            pa.array([Decimal("-123.45"), None], pa.decimal128(7, 2)), [Decimal("-123.45"), None],
            store_decimal_as_integer=True,
        ),
    ),
    FaultFile(
        "unsigned extremes", "duckdb/duckdb#24737, apache/parquet-format#314", "publish",
        _column(pa.array([2**64 - 1, 0, None], pa.uint64()), [2**64 - 1, 0, None]),
    ),
    FaultFile(
        "map with null values", "apache/parquet-java#1604", "publish", _column(
            pa.array([[("a", None), ("b", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            [("map", (("a", None), ("b", 1))), ("map", ()), None],
        ),
    ),
    FaultFile(
        "pyarrow's time that is adjusted to UTC", "TIME WITH TIME ZONE for DuckDB, time64 by Arrow's schema",
        "publish", _column(
            pa.array([1000], pa.time64("us")), [("time", 1_000_000)], write_time_adjusted_to_utc=True
        ),
    ),
    FaultFile(
        "UUIDs in structs", "bytes for pyarrow, where extension types are off", "publish", _column(
            pa.StructArray.from_arrays(
                [pa.ExtensionArray.from_storage(pa.uuid(), pa.array([_UUID], pa.binary(16)))], ["id"]
            ),
            [struct({"id": ("uuid", _UUID)})],
        ),
    ),
    FaultFile(
        "names with dots", "apache/arrow#11347, dask/fastparquet#245", "publish", _dots, prompt="a.b"
    ),
    FaultFile(
        "fields of structs in another order",
        "apache/arrow#45028, apache/datafusion#17285, delta-io/delta-rs#3694", "publish",
        _fields_in_another_order, prompt="x",
    ),
    FaultFile(
        "two columns of one name", "apache/arrow#37428, apache/datafusion#24381, duckdb/duckdb#13111",
        "refuse", _two_of_one_name,
    ),
    FaultFile("text that is not UTF-8", "DuckDB and Polars refuse the file", "refuse", _invalid_text),
]  # fmt: skip
