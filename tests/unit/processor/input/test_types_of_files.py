"""The types of a slice's files, together: every value is published as it was, at every depth, or the slice is
refused before a row is paid."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from tests.support.in_process import InProcess, changed, job_of, run_in_process

_HOUR = dt.timedelta(hours=1)
_DISTANT = [dt.datetime(3000, 1, 1), dt.datetime(9999, 12, 31), dt.datetime(1500, 1, 1)]
_2500 = dt.datetime(2500, 1, 1)
_ZONED = dt.datetime(2026, 1, 31, 5, tzinfo=dt.UTC)


class Slice:
    """A slice whose input is in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.job = job_of(input_path=f"{self.folder}/", output_path=f"{folder}/out", prompt="{x}")
        self.cluster = InProcess()

    def parquet(self, *columns: pa.Array, name: str = "x", **options: Any) -> None:
        for column in columns:
            self.file({name: column}, **options)

    def file(self, columns: dict[str, Any], **options: Any) -> None:
        pq.write_table(
            pa.table(columns), self.folder / f"{len(list(self.folder.iterdir()))}.parquet", **options
        )

    def lines(self, *files: str) -> None:
        for number, text in enumerate(files):
            (self.folder / f"{number}.jsonl").write_text(text)

    def texts(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)

    def publish(self, **given: Any) -> pa.Table:
        self.job = changed(self.job, **given)
        run_in_process(self.job, self.cluster)
        return pq.read_table(self.job.slice_path, partitioning=None)

    def values(self, **given: Any) -> list[Any]:
        return list(self.publish(**given).column("x").to_pylist())

    def refuse(self, match: str, **given: Any) -> None:
        self.job = changed(self.job, **given)
        with pytest.raises(SliceError, match=match) as refused:
            run_in_process(self.job, self.cluster)
        assert (refused.value.kind, self.cluster.answered) == ("input", 0)


@pytest.fixture
def a_slice(tmp_path: Path) -> Slice:
    return Slice(tmp_path)


@pytest.mark.parametrize("options", [{"use_deprecated_int96_timestamps": True}, {"flavor": "spark"}])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"at": [v]}])
def test_distant_years_in_the_old_timestamp_format_are_kept(
    a_slice: Slice, options: dict[str, Any], wrap: Callable[[Any], Any]
) -> None:
    values = [wrap(value) for value in _DISTANT]
    a_slice.parquet(pa.array(values), **options)
    table = a_slice.publish()
    assert table.column("x").to_pylist() == values
    assert all(
        "3000" in text or "9999" in text or "1500" in text for text in table.column("answer").to_pylist()
    )


def test_nanoseconds_in_the_old_timestamp_format_are_kept_beside_distant_years(a_slice: Slice) -> None:
    a_slice.file(
        {"x": pa.array([1, 1001], pa.timestamp("ns")), "y": pa.array(_DISTANT[:2], pa.timestamp("us"))},
        use_deprecated_int96_timestamps=True,
    )
    table = a_slice.publish()
    assert table.column("x").cast(pa.int64()).to_pylist() == [1, 1001]
    assert table.column("y").to_pylist() == _DISTANT[:2]


def test_slice_of_a_distant_day_has_its_rows_in_the_old_timestamp_format(a_slice: Slice) -> None:
    a_slice.file({"x": [1, 2, 3], "t": pa.array(_DISTANT)}, use_deprecated_int96_timestamps=True)
    assert a_slice.values(source__column="t", slice_key="3000-01-01") == [1]


def test_slice_of_the_first_day_that_nanoseconds_reach_has_its_rows(a_slice: Slice) -> None:
    times = pa.array([-(2**63) + 1, -1, 0, 2**63 - 1], pa.timestamp("ns"))
    a_slice.file({"x": [1, 2, 3, 4], "t": times})
    for key, values in {"1677-09-21": [1], "1969-12-31": [2], "1970-01-01": [3], "2262-04-11": [4]}.items():
        assert a_slice.values(source__column="t", slice_key=key) == values


@pytest.mark.parametrize(("one", "other"), [("us", "ns"), ("s", "us")])
@pytest.mark.parametrize("wrap", [lambda v, k: (v, k), lambda v, k: ({"a": v}, pa.struct([("a", k)]))])
def test_durations_of_several_units_are_the_same_durations(
    a_slice: Slice, one: str, other: str, wrap: Callable[..., tuple[Any, pa.DataType]]
) -> None:
    values = [wrap(_HOUR, pa.duration(unit)) for unit in (one, other)]
    a_slice.parquet(*(pa.array([value], kind) for value, kind in values))
    assert a_slice.values() == [value for value, _ in values]


_LOSSLESS = {
    "integers of several sizes": [pa.array([2**40]), pa.array([3], pa.int8())],
    "unsigned integers that fit beside signed ones": [pa.array([2**62], pa.uint64()), pa.array([-1])],
    "unsigned integers, and none below zero": [pa.array([2**63 + 5], pa.uint64()), pa.array([1])],
    "integers beside decimals": [pa.array([10**17]), pa.array([Decimal("1.25")], pa.decimal128(5, 2))],
    "integers beside decimals of many digits": [
        pa.array([10**17]), pa.array([Decimal("1E-20")], pa.decimal128(38, 20)),
    ],
    "decimals": [pa.array([Decimal("1.5")], pa.decimal128(38, 1)), pa.array([Decimal("2.25")])],
    "instants in several zones": [
        pa.array([_ZONED], pa.timestamp("us", "Asia/Taipei")), pa.array([_ZONED], pa.timestamp("ms", "UTC")),
    ],
    "times of "
    "day": [pa.array([dt.time(1)], pa.time32("s")), pa.array([dt.time(2, 0, 0, 5)], pa.time64("ns"))],
    "nulls": [pa.nulls(2), pa.array(["a"])],
    "nulls in lists of structs": [pa.array([[{"a": None}]]), pa.array([[{"a": 1}]])],
    "texts": [pa.array(["a"], pa.large_string()), pa.array(["b"]).dictionary_encode()],
    "structs with other fields": [pa.array([{"a": 1}]), pa.array([{"b": 2}])],
    "lists of structs, one with a required field": [
        pa.array([[{"a": 1}]]),
        pa.array([[{"a": 1, "b": 2}]],
                 pa.list_(pa.struct([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)]))),
    ],
    "a struct with a required field": [
        pa.array([{"a": 1}, None], pa.struct([pa.field("a", pa.int64(), nullable=False)])),
    ],
    "maps": [pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
             pa.array([[("b", 2)]], pa.map_(pa.large_string(), pa.int64()))],
    "microseconds beside nanoseconds that hold them": [
        pa.array([dt.datetime(2026, 1, 31)], pa.timestamp("us")), pa.array([7000], pa.timestamp("ns")),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("columns", _LOSSLESS.values(), ids=_LOSSLESS)
@pytest.mark.parametrize("has_statistics", [True, False])
def test_types_that_hold_each_others_values_become_one(
    a_slice: Slice, columns: list[pa.Array], has_statistics: bool
) -> None:
    a_slice.parquet(*columns, write_statistics=has_statistics)
    expected = [_with_fields(value, columns) for column in columns for value in column.to_pylist()]
    assert a_slice.values() == expected


def _with_fields(value: Any, columns: list[pa.Array]) -> Any:
    """A struct has the fields of all files."""
    kinds = [column.type for column in columns]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        names = [field.name for kind in kinds for field in kind.value_type]
        return [{name: item.get(name) for name in names} for item in value]
    if isinstance(value, dict):
        return {name: value.get(name) for kind in kinds for name in (field.name for field in kind)}
    return value


_CLASHES = {
    "an integer beside a float": [pa.array([1]), pa.array([1.5])],
    "an integer beside a float, in structs": [pa.array([{"a": 1}]), pa.array([{"a": 1.5}])],
    "a decimal beside a float": [pa.array([Decimal("12345678901234567.89")]), pa.array([1.5])],
    "unsigned integers beside negative ones": [pa.array([2**63 + 5], pa.uint64()), pa.array([-1])],
    "a distant year beside nanoseconds, in lists": [
        pa.array([[_2500]], pa.list_(pa.timestamp("us"))), pa.array([[1]], pa.list_(pa.timestamp("ns"))),
    ],
    "long durations beside "
    "nanoseconds": [pa.array([2**62], pa.duration("us")), pa.array([_HOUR], pa.duration("ns"))],
    "text beside numbers": [pa.array(["a"]), pa.array([1])],
    "text beside bytes": [pa.array(["a"]), pa.array([b"a"])],
    "instants beside local times": [pa.array([_ZONED]), pa.array([_2500])],
    "a list beside its item": [pa.array([[1]]), pa.array([1])],
    "decimals of over 38 digits together": [
        pa.array([Decimal(10**30)], pa.decimal128(31, 0)),
        pa.array([Decimal("1E-20")], pa.decimal128(30, 20)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("columns", _CLASHES.values(), ids=_CLASHES)
@pytest.mark.parametrize("has_statistics", [True, False])
def test_types_that_do_not_are_refused_before_a_row_is_paid_and_both_files_are_named(
    a_slice: Slice, columns: list[pa.Array], has_statistics: bool
) -> None:
    a_slice.parquet(*columns, write_statistics=has_statistics)
    a_slice.refuse(r"(?s)[01]\.parquet: column 'x.*[01]\.parquet.*source.column_types.*columns=")


_JSON = {
    "an integer that no float holds, in a struct": ['{"x":{"a":9007199254740993}}\n{"x":{"a":1.5}}\n'],
    "in a list": ['{"x":[9007199254740993]}\n{"x":[1.5]}\n'],
    "in another file": ['{"x":9007199254740993}\n', '{"x":1.5}\n'],
    "of the other sign": ['{"x":-9007199254740993}\n{"x":1.5}\n'],
    "in another block": [
        '{"x":9007199254740993,"y":"' + "z" * 17_000_000 + '"}\n', '{"x":1.5}\n',
    ],
    "of over 64 bits": ['{"x":100000000000000000000000}\n'],
    "with a sign, beside one that needs none": ['{"x":-1}\n{"x":18446744073709551615}\n'],
}  # fmt: skip


@pytest.mark.parametrize("files", _JSON.values(), ids=_JSON)
def test_json_integers_that_would_be_rounded_are_refused(a_slice: Slice, files: list[str]) -> None:
    a_slice.lines(*files)
    a_slice.refuse(r"[01]\.jsonl.*x")


@pytest.mark.parametrize("value", [18446744073709551615, [9223372036854775808], {"id": 18446744073709551615}])
def test_json_integers_of_64_bits_are_kept(a_slice: Slice, value: Any) -> None:
    a_slice.lines(json.dumps({"x": value}) + "\n")
    assert a_slice.values() == [value]


@pytest.mark.parametrize(("kind", "number"), [
    ("float64", "9007199254740993"), ("float32", "-16777217"), ("float64", "1e400"), ("float32", "-1e39"),
])  # fmt: skip
@pytest.mark.parametrize(("name", "content"), [
    ("0.csv", "y,x\n1,0.5\n2,{}\n"), ("0.jsonl", '{{"x":0.5}}\n{{"x":{}}}\n'),
])  # fmt: skip
def test_number_that_its_declared_float_does_not_hold_is_refused(
    a_slice: Slice, kind: str, number: str, name: str, content: str
) -> None:
    (a_slice.folder / name).write_text(content.format(number))
    a_slice.refuse(rf"{name} .*row [12]", source__column_types={"x": kind})


@pytest.mark.parametrize(("name", "content"), [
    ("0.csv", "x\n9007199254740994\n-16777218.5\n-inf\n0.1\n"),
    ("0.jsonl", '{"x":9007199254740994}\n{"x":-16777218.5}\n{"x":-1e308}\n{"x":0.1}\n'),
])  # fmt: skip
def test_number_that_its_declared_float_holds_is_published(a_slice: Slice, name: str, content: str) -> None:
    (a_slice.folder / name).write_text(content)
    smallest = float("-inf") if name == "0.csv" else -1e308
    assert a_slice.values(source__column_types={"x": "float64"}) == [
        9007199254740994.0,
        -16777218.5,
        smallest,
        0.1,
    ]


@pytest.mark.parametrize("content", [b"x,y\r1,2\r3,4\n5,6\n", b"x\r1\r2\r"])
def test_csv_whose_header_ends_with_a_carriage_return_loses_no_row(a_slice: Slice, content: bytes) -> None:
    (a_slice.folder / "0.csv").write_bytes(content)
    a_slice.refuse(r"0\.csv: the header cannot be read")


def test_digits_within_a_json_text_are_no_integers(a_slice: Slice) -> None:
    a_slice.lines('{"x":1e16,"note":"order 10000000000000001 shipped"}\n')
    assert a_slice.publish().select(["x", "note"]).to_pylist() == [
        {"x": 1e16, "note": "order 10000000000000001 shipped"}
    ]


def test_json_nulls_take_the_type_of_the_next_block(a_slice: Slice) -> None:
    a_slice.lines('{"x":null,"y":[null]}\n' * 2, '{"x":"a","y":[{"b":null}]}\n', '{"x":null,"y":[{"b":1}]}\n')
    assert a_slice.publish().select(["x", "y"]).to_pylist() == [
        {"x": None, "y": [None]}, {"x": None, "y": [None]}, {"x": "a", "y": [{"b": None}]},
        {"x": None, "y": [{"b": 1}]},
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize(("kind", "texts"), [
    ("timestamp[us]", ["2026-01-31T00:00:00+05:00", "2026-01-31T00:00:00"]),
    ("timestamp[us, tz=America/New_York]", ["2026-01-31T00:00:00"]),
])  # fmt: skip
def test_instants_and_local_times_are_never_mixed(
    a_slice: Slice, suffix: str, kind: str, texts: list[str]
) -> None:
    if suffix == "jsonl":
        a_slice.lines("".join(json.dumps({"x": text}) + "\n" for text in texts))
    else:
        (a_slice.folder / "0.csv").write_text("\n".join(["x", *texts]))
    a_slice.refuse(rf"0\.{suffix}", source__column_types={"x": kind})


def test_declared_types_reach_into_structs_and_lists(a_slice: Slice) -> None:
    a_slice.lines('{"x":{"at":"2026-01-31T06:00:00+01:00","orders":[{"id":7},{"id":null}]}}\n')
    [value] = a_slice.values(
        source__column_types={"x.at": "timestamp[us, tz=UTC]", "x.orders[].id": "decimal(5, 2)"}
    )
    assert value == {"at": _ZONED, "orders": [{"id": Decimal("7.00")}, {"id": None}]}


def test_declared_type_settles_what_files_disagree_on(a_slice: Slice) -> None:
    a_slice.parquet(pa.array([{"id": 1}]), pa.array([{"id": 1.5}]))
    assert a_slice.values(source__column_types={"x.id": "decimal(10, 2)"}) == [
        {"id": Decimal(1)},
        {"id": Decimal("1.5")},
    ]


def test_declared_type_that_does_not_hold_a_value_is_refused(a_slice: Slice) -> None:
    a_slice.parquet(pa.array([1, 300]))
    a_slice.refuse(r"0\.parquet.*'x'", source__column_types={"x": "int8"})


def test_declared_type_of_another_kind_is_refused(a_slice: Slice) -> None:
    a_slice.parquet(pa.array([1, 300]))
    a_slice.refuse(
        r"column 'x' string, and .*0\.parquet has int64.*another kind", source__column_types={"x": "string"}
    )


def test_declared_type_of_a_field_that_is_nowhere_is_refused(a_slice: Slice) -> None:
    a_slice.parquet(pa.array([{"id": 1}]))
    a_slice.refuse(
        r"names \['x.key'\], which the input does not have", source__column_types={"x.key": "int8"}
    )


_ODD = {
    "INTERVAL": "INTERVAL 1 MONTH", "INTERVAL in a list": "[INTERVAL 1 MONTH]",
    "TIMETZ": "TIMETZ '12:00:00+05'", "VARIANT": "'a'::VARIANT",
}  # fmt: skip


@pytest.mark.parametrize("expression", _ODD.values(), ids=_ODD)
def test_duckdb_types_that_arrow_lacks_are_refused_with_the_way_out(a_slice: Slice, expression: str) -> None:
    duckdb.sql(f"copy (select {expression} as x) to '{a_slice.folder}/0.parquet' (format parquet)")
    a_slice.refuse(r"0\.parquet: column 'x' holds .*columns=")


def test_polars_and_pandas_types_that_arrow_lacks_are_refused_with_the_way_out(a_slice: Slice) -> None:
    path = a_slice.folder / "0.parquet"
    pl.DataFrame({"x": pl.Series([2**100], dtype=pl.Int128)}).write_parquet(path)
    a_slice.refuse(r"0\.parquet: column 'x' .*128 bits.*columns=")
    pd.DataFrame({"x": pd.period_range("2026-01", periods=2, freq="M")}).to_parquet(path)
    a_slice.refuse(r"0\.parquet: column 'x' .*periods.*columns=")


@pytest.mark.parametrize("expression", ["uuid()", "[uuid()]", "{'u': uuid()}", "map([uuid()], [uuid()])"])
def test_uuids_stay_uuids_at_every_depth(a_slice: Slice, expression: str) -> None:
    source = f"{a_slice.folder}/0.parquet"
    duckdb.sql(f"copy (select {expression} as x from range(3)) to '{source}' (format parquet)")
    a_slice.publish()
    given, published = (
        duckdb.sql(f"select x, typeof(x) from '{path}'").fetchall()
        for path in (source, f"{a_slice.job.slice_path}/*.parquet")
    )
    assert given == published


def test_null_column_takes_the_type_of_a_file_that_has_values_and_else_is_text(a_slice: Slice) -> None:
    a_slice.file({"x": ["a"], "y": pa.nulls(1)})
    assert a_slice.publish().schema.field("y").type == pa.string()
    a_slice.file({"x": ["b"], "y": [1]})
    assert a_slice.publish(rerun__on_input_change="recompute").schema.field("y").type == pa.int64()


def test_file_without_the_column_of_the_prompt_is_refused_and_its_near_name_is_told(a_slice: Slice) -> None:
    a_slice.file({"x": ["a"]})
    a_slice.file({"X ": ["b"]})
    a_slice.refuse(r"column 'x'.*1\.parquet, which has 'X '")


def test_file_without_another_column_has_nulls_there_and_that_is_told(
    a_slice: Slice, caplog: pytest.LogCaptureFixture
) -> None:
    a_slice.file({"x": ["a"], "y": [1]})
    a_slice.file({"x": ["b"]})
    assert a_slice.publish().column("y").to_pylist() == [1, None]
    assert "column 'y' is missing in 1 of 2 files, such as" in caplog.text


def test_columns_that_differ_in_case_only_are_refused_with_their_files(a_slice: Slice) -> None:
    a_slice.file({"x": ["a"], "name": [1]})
    a_slice.file({"x": ["b"], "Name": [2]})
    a_slice.refuse(r"0\.parquet has a column 'name' and .*1\.parquet 'Name'.*columns=")
    assert a_slice.publish(columns=["x"]).column("x").to_pylist() == ["a", "b"]


def test_csv_file_with_another_header_is_refused(a_slice: Slice) -> None:
    (a_slice.folder / "0.csv").write_text("id,x\n1,a\n")
    (a_slice.folder / "1.csv").write_text("2,b\n3,c\n")
    a_slice.refuse(r"1\.csv .*\['2', 'b'\]")


@pytest.mark.parametrize("column", [
    pa.array(["a", b"\xff".decode("latin-1")]).cast(pa.binary()),
    pa.array([[b"\xff"]], pa.list_(pa.binary())),
])  # fmt: skip
@pytest.mark.parametrize("prompt", ["{x}", "{y}"])
def test_text_that_is_not_utf8_is_refused_or_replaced(a_slice: Slice, column: pa.Array, prompt: str) -> None:
    raw = pa.array([b"ok", b"\xff"] if pa.types.is_binary(column.type) else [[b"ok"], [b"\xff"]], column.type)
    text = raw.view(pa.string()) if pa.types.is_binary(raw.type) else pa.ListArray.from_arrays(
        raw.offsets, raw.values.view(pa.string())
    )  # fmt: skip
    a_slice.file({"y": ["a", "b"], "x": text})
    a_slice.refuse(r"row 2 of .*0\.parquet: column 'x' .*on_invalid_text='replace'.*columns=", prompt=prompt)
    table = a_slice.publish(source__on_invalid_text="replace")
    shown = duckdb.sql(f"select x from '{a_slice.job.slice_path}/*.parquet'").fetchall()
    assert str(shown[1][0]).strip("[]'") == "\ufffd"
    assert len(table) == 2


@pytest.mark.parametrize("name", ["0.jsonl", "0.csv"])
def test_text_file_that_is_not_utf8_is_refused_with_the_column_replaced_or_decoded(
    a_slice: Slice, name: str
) -> None:
    rows = {"0.jsonl": b'{"y":"a","x":"ok"}\n{"y":"b","x":"\xe9"}\n', "0.csv": b"y,x\na,ok\nb,\xe9\n"}
    (a_slice.folder / name).write_bytes(rows[name])
    a_slice.refuse(rf"{name} .*row .*: column 'x'.*source.encoding.*on_invalid_text")
    assert a_slice.values(source__on_invalid_text="replace") == ["ok", "\ufffd"]
    assert a_slice.values(source__encoding="latin-1", rerun__on_config_change="recompute") == ["ok", "é"]


def test_text_of_a_csv_with_escapes_that_is_not_utf8_is_refused_with_the_column(a_slice: Slice) -> None:
    (a_slice.folder / "0.csv").write_bytes(b"y,x\na,ok\nb,\xe9\n")
    a_slice.refuse(r"0\.csv .*row 2: column 'x'", source__csv={"escape_char": "\\"})


@pytest.mark.parametrize("files", [
    ('{"x": 1, "a.b": 1}', '{"x": 2}', '{"x": 3, "note": "a.b"}'),
    ('{"x": 1}', '{"x": 2}\n{"x": 3, "a.b": 1}'),
    ('{"x": 1, "c": {"a.b": 5}}', '{"x": 3, "a.b": 1, "a": {"b": 7}}'),
])  # fmt: skip
def test_declared_name_with_dots_is_the_column_of_that_name_where_there_is_one(
    a_slice: Slice, files: tuple[str, ...]
) -> None:
    a_slice.lines(*files)
    table = a_slice.publish(source__column_types={"a.b": "decimal(5, 1)"}, prompt="{x}")
    assert table.column("a.b").type == pa.decimal128(5, 1)
    assert table.column("a.b").drop_null().to_pylist() == [Decimal(1)]


def test_declared_path_may_be_missing_in_files_and_first_records(a_slice: Slice) -> None:
    a_slice.lines('{"x": 1}\n{"x": 2, "a": {"b": 1}}', '{"x": 3}', '{"x": 4, "a": {}}')
    table = a_slice.publish(source__column_types={"a.b": "decimal(5, 1)"})
    assert table.column("a").to_pylist() == [None, {"b": Decimal(1)}, None, {"b": None}]


def test_column_of_the_prompt_that_only_files_without_rows_have_is_missing(a_slice: Slice) -> None:
    a_slice.file({"y": [1]})
    a_slice.file({"x": pa.array([], pa.int64())})
    a_slice.refuse("column 'x', which the request or the slice needs, is missing in 1 of 1 files")


def test_prompts_have_all_digits_of_a_time_of_day(a_slice: Slice) -> None:
    times = pa.array([1, 43_200_123_456_789, 43_200_120_000_000, 0], pa.time64("ns"))
    a_slice.file({"x": times})
    assert a_slice.publish(prompt="{x}").column("answer").to_pylist() == [
        "00:00:00.000000001", "12:00:00.123456789", "12:00:00.12", "00:00:00",
    ]  # fmt: skip


def test_lists_of_no_items_are_refused(a_slice: Slice) -> None:
    a_slice.file({"x": ["a"], "y": pa.array([[]], pa.list_(pa.int64(), 0))})
    a_slice.refuse(r"0\.parquet: column 'y' is .*lists of no items.*columns=")


def test_row_with_a_time_of_24_hours_is_not_asked_with_another_time(a_slice: Slice) -> None:
    duckdb.sql(
        "copy (select [t] as x from (values (time '24:00:00'), ('23:59:59'), (null)) as _(t)) "
        f"to '{a_slice.folder}/0.parquet'"
    )
    table = a_slice.publish(quality__max_quarantine=0.5)
    assert len(table) == 2
    assert "23:59:59" in table.column("answer")[0].as_py()
    [failed] = pq.read_table(a_slice.job.paths.quarantine, partitioning=None).to_pylist()
    assert failed["__error"] == "column 'x' holds a value that Python cannot read: a time of 24:00:00"


def test_null_struct_with_texts_is_null(a_slice: Slice) -> None:
    required = pa.field("t", pa.string(), nullable=False)
    kind = pa.struct([("a", pa.struct([required, ("b", pa.list_(pa.string(), 2))]))])
    a_slice.file({"x": [1], "y": pa.array([{"a": None}], kind)})
    assert a_slice.publish().column("y").to_pylist() == [{"a": None}]


def test_bit_that_flipped_in_a_page_with_a_checksum_is_no_value(a_slice: Slice) -> None:
    a_slice.file({"x": list(range(100))}, compression="none", use_dictionary=False, write_page_checksum=True)
    [path] = a_slice.folder.iterdir()
    content = bytearray(path.read_bytes())
    content[content.index((50).to_bytes(8, "little")) + 3] ^= 4
    path.write_bytes(content)
    a_slice.refuse(r"0\.parquet .*row group 0, column 'x': .*CRC")


_NULL = "__HIVE_DEFAULT_PARTITION__"
_A = b"x\na\n"
_FOLDERS: dict[str, tuple[dict[str, bytes], str]] = {
    "text beside a file's integers": (
        {"c=a/1.jsonl": b'{"x":"a"}', "0.jsonl": b'{"x":"a","c":5}'},
        r"0\.jsonl: column 'c' is int64, and string in the folder of .*c=a/1\.jsonl",
    ),
    "names that differ in case": (
        {"C=1/0.csv": _A, "c=2/0.csv": _A}, r"C=1/0\.csv has a column 'C' and .*c=2/0\.csv 'c'",
    ),
    "a column's name in another case": ({"X=1/0.csv": _A}, r"has a column 'x' and .*X=1/0\.csv 'X'"),
    "two values": ({"c=1/c=2/0.csv": _A}, r"c=2/0\.csv lies in the folders c=1 and c=2"),
    "bytes that are no text": ({"c=%FF/0.csv": _A}, r"c=%FF/0\.csv: the name is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "match"), _FOLDERS.values(), ids=_FOLDERS)
def test_folders_that_give_rows_no_one_value_are_refused(
    a_slice: Slice, files: dict[str, bytes], match: str
) -> None:
    a_slice.texts(files)
    a_slice.refuse(match)


@pytest.mark.parametrize("files", [
    {"0.jsonl": b'{"x":"a","c":5}', "c=01/1.jsonl": b'{"x":"b"}', f"c={_NULL}/2.jsonl": b'{"x":"c"}'},
    {"0.csv": b"x,c\na,5\n", "c=01/1.csv": b"x\nb\n", f"c={_NULL}/2.csv": b"x\nc\n"},
])  # fmt: skip
def test_type_that_is_declared_for_a_folders_column_is_its_values(
    a_slice: Slice, files: dict[str, bytes]
) -> None:
    a_slice.texts(files)
    table = a_slice.publish(source__column_types={"c": "int64"}, prompt="{x} {c}")
    assert table.schema.field("c").type == pa.int64()
    assert dict(zip(*table.select(["x", "c"]).to_pydict().values(), strict=True)) == {
        "a": 5,
        "b": 1,
        "c": None,
    }


@pytest.mark.parametrize(
    ("value", "kind"), [("b", "int64"), ("9007199254740993", "float64"), ("1e39", "float32")]
)
def test_folder_that_is_not_of_its_declared_type_is_refused(a_slice: Slice, value: str, kind: str) -> None:
    a_slice.texts({"c=1/0.csv": _A, f"c={value}/0.csv": _A})
    match = rf"makes column 'c' .*, and .*c={value}/0\.csv lies in the folder c={value}"
    a_slice.refuse(match, source__column_types={"c": kind})


@pytest.mark.parametrize("text", ['{"x":"c"}', '{"x":{"c":1}}'])
def test_declared_json_column_that_stands_only_in_other_values_is_told(a_slice: Slice, text: str) -> None:
    a_slice.lines(text + "\n")
    a_slice.refuse(
        "column_types names .'c'., which the input does not have", source__column_types={"c": "int64"}
    )


def test_file_name_that_is_not_utf8_is_refused(a_slice: Slice) -> None:
    with open(os.fsencode(a_slice.folder) + b"/\xff.csv", "wb") as file:
        file.write(_A)
    a_slice.refuse(r"udcff\.csv: the name is not UTF-8")


@pytest.mark.parametrize(("rows", "options"), [
    (["p", "a\rb"], {}),
    (['"p ""q""\r\n"', "\ra"], {}),
    (["p\\\r", 'q\\"', "a\rb"], {"source__csv": {"escape_char": "\\"}}),
])  # fmt: skip
def test_carriage_return_alone_ends_no_csv_line(
    a_slice: Slice, rows: list[str], options: dict[str, Any]
) -> None:
    a_slice.texts({"0.csv": "\n".join(["x", "o", *rows, "z"]).encode()})
    a_slice.refuse(rf"0\.csv .*row {len(rows) + 1}: .*a CR without an LF", **options)


def test_carriage_returns_in_quotes_are_kept(a_slice: Slice) -> None:
    a_slice.texts({"0.csv": b'x\r\n"a\rb"\r\n"\r"\r\nq\r\n'})
    assert a_slice.values() == ["a\rb", "\r", "q"]


def test_escaped_carriage_returns_and_those_behind_an_escaped_quote_are_kept(a_slice: Slice) -> None:
    a_slice.texts({"0.csv": b'x,o\np\\\rq,1\n"a\\"b\r",2\n'})
    assert a_slice.values(source__csv={"escape_char": "\\"}) == ["p\rq", 'a"b\r']


def test_csv_value_that_is_not_of_its_declared_type_is_refused_with_its_column(a_slice: Slice) -> None:
    a_slice.texts({"0.csv": b"a,x\n1,1\n2,z\n"})
    a_slice.refuse(
        r"0\.csv .*row 2, column 'x': .*int64.*'z'", source__column_types={"x": "int64"}, columns=["x"]
    )


@pytest.mark.parametrize("row", [b"1,a", b'"1","a"\r\n'])
def test_csv_with_a_byte_order_mark_and_a_header_of_two_lines_is_read(a_slice: Slice, row: bytes) -> None:
    header = b'\xef\xbb\xbf"new\nline","x"'
    a_slice.texts({"0.csv": header + b"\r\n" + row, "1.csv": header})
    assert a_slice.publish().select(["new\nline", "x"]).to_pylist() == [{"new\nline": "1", "x": "a"}]


def test_folders_column_that_is_left_out_is_null_where_the_table_has_it(tmp_path: Path) -> None:
    first, second = Slice(tmp_path), tmp_path / "other"
    first.texts({"c=1/0.csv": _A})
    first.publish()
    (second / "c=1").mkdir(parents=True)
    (second / "c=1/0.csv").write_bytes(_A)
    first.publish(input_path=f"{second}/", slice_key="2026-02-01", columns=["x"])
    assert pq.read_table(first.job.slice_path, partitioning=None).column("c").to_pylist() == [None]


def test_folders_value_that_the_tables_type_does_not_hold_is_refused(a_slice: Slice) -> None:
    a_slice.file({"x": ["a"], "c": pa.array([1], pa.int8())})
    a_slice.publish()
    folder = a_slice.folder.parent / "other" / "c=300"
    folder.mkdir(parents=True)
    (folder / "0.csv").write_bytes(_A)
    a_slice.cluster = InProcess()
    given = {
        "input_path": f"{folder.parent}/",
        "slice_key": "2026-02-01",
        "source__column_types": {"c": "int64"},
    }
    a_slice.refuse("column 'c' is int64, and int8 in the table", **given)
