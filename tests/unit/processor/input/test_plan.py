"""Listing, planning and reading real files, without Ray."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input import survey as plan_module
from airflow_provider_raydatallm.processor.input.formats import text as text_module
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from tests.support.in_process import job_of


def plan_of(path: Path | str, **arguments: Any) -> Plan:
    return make_plan(job_of(**{"input_path": str(path), "output_path": "/elsewhere", **arguments}))


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    return [row for unit in plan.units for table in plan.read(unit) for row in table.to_pylist()]


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "TEXT_RANGE_BYTES", 64)


def test_same_files_give_the_same_plan(tmp_path: Path) -> None:
    for name in "ab":
        pq.write_table(pa.table({"x": range(10)}), tmp_path / f"{name}.parquet", row_group_size=4)
    one, two = plan_of(tmp_path), plan_of(tmp_path)
    assert [u.id for u in one.units] == [u.id for u in two.units]
    assert [u.rows for u in one.units] == [4, 4, 2] * 2
    assert one.input_hash == two.input_hash
    pq.write_table(pa.table({"x": range(11)}), tmp_path / "b.parquet", row_group_size=4)
    three = plan_of(tmp_path)
    assert three.input_hash != one.input_hash
    assert [u.id for u in three.units[:3]] == [u.id for u in one.units[:3]]
    assert not {u.id for u in three.units[3:]} & {u.id for u in one.units}


@pytest.mark.usefixtures("small_ranges")
def test_csv_is_cut_at_records_and_read_back_exactly(tmp_path: Path) -> None:
    expected = [
        {"id": f"{i:05}", "text": f'line 1\nhe said "{i}", and left' if i % 3 else "", "ünï": "é" * (i % 5)}
        for i in range(200)
    ]
    lines = ["id,text,ünï"] + [
        f'{r["id"]},"{r["text"].replace(chr(34), chr(34) * 2)}",{r["ünï"]}' for r in expected
    ]
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    plan = plan_of(tmp_path / "a.csv")
    assert len(plan.units) > 10
    assert rows_of(plan) == expected
    assert plan.rows == 200
    # Any unit can be read on its own, as any set of columns.
    unit = plan.units[3]
    part = expected[unit.range.first_row : unit.range.first_row + unit.rows]
    assert [r for t in plan.read(unit, ["ünï"]) for r in t.to_pylist()] == [{"ünï": r["ünï"]} for r in part]


def test_csv_columns_are_strings_unless_column_types_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("zip,price,day\n01234,1.50,2026-01-31\n,,\n")
    assert rows_of(plan_of(tmp_path))[0] == {"zip": "01234", "price": "1.50", "day": "2026-01-31"}
    typed = plan_of(tmp_path, source__column_types={"price": "float64", "day": "date32"})
    assert rows_of(typed) == [
        {"zip": "01234", "price": 1.5, "day": dt.date(2026, 1, 31)},
        {"zip": "", "price": None, "day": None},
    ]
    with pytest.raises(SliceError, match=r"'nope'.*'day'"):
        plan_of(tmp_path, source__column_types={"nope": "int64"})
    with pytest.raises(SliceError, match=r"source.column_types\['price'\] is 'money'"):
        plan_of(tmp_path, source__column_types={"price": "money"})


@pytest.mark.usefixtures("small_ranges")
def test_json_lines_of_changing_shape_become_one_schema(tmp_path: Path) -> None:
    expected = [
        {"n": i, "when": "2026-01-31 10:00:00"} | ({"more": {"a": [i]}} if i > 50 else {}) for i in range(100)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, expected)) + "\n\n")
    plan = plan_of(tmp_path)
    assert len(plan.units) > 10
    assert rows_of(plan) == [{"more": None, **w} for w in expected]
    assert plan.schema.field("when").type == pa.string()


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.usefixtures("small_ranges")
def test_compressed_text_is_one_unit(tmp_path: Path, suffix: str) -> None:
    lines = ["n", *map(str, range(100))] if suffix == "csv" else [f'{{"n": "{i}"}}' for i in range(100)]
    (tmp_path / f"a.{suffix}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    plan = plan_of(tmp_path)
    assert len(plan.units) == 1
    assert rows_of(plan) == [{"n": str(i)} for i in range(100)]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["2026-01-30", "2026-01-31", None]),
        pa.array([dt.date(2026, 1, 30), dt.date(2026, 1, 31), None]),
        pa.array([dt.datetime(2026, 1, 30, 5), dt.datetime(2026, 1, 31, 23, 59, 59, 999), None]),
    ],
    ids=["text", "date", "timestamp"],
)
def test_slice_column_filters_rows_of_any_date_like_type(tmp_path: Path, values: pa.Array) -> None:
    pq.write_table(pa.table({"day": values, "n": [0, 1, 2]}), tmp_path / "a.parquet")
    plan = plan_of(tmp_path, source__column="day", columns=["n"])
    assert rows_of(plan) == [{"n": 1}]
    with pytest.raises(SliceError, match=r"source.column 'nope'"):
        plan_of(tmp_path, source__column="nope")


def test_format_that_arrow_writes_otherwise_is_refused_for_dates(tmp_path: Path) -> None:
    dates = pa.array([dt.date(2026, 1, 5)])
    pq.write_table(pa.table({"day": dates, "text": ["1/5/2026"]}), tmp_path / "a.parquet")
    american = {"slice_key": "1/5/2026", "source__slice_format": "%-m/%-d/%Y"}
    with pytest.raises(SliceError, match=r"'%-m/%-d/%Y' has a directive that is not portable"):
        plan_of(tmp_path, source__column="day", **american)
    assert plan_of(tmp_path, source__column="text", **american).rows == 1
    assert plan_of(tmp_path, source__column="day", slice_key="Jan 05", source__slice_format="%b %d").rows == 1


@pytest.mark.parametrize("key", ["2026-01-31T00:00:00", "2026-1-31", "2026-02-30", "31.01.2026", "EMEA"])
def test_key_that_no_date_is_written_as_is_refused_and_not_empty(tmp_path: Path, key: str) -> None:
    day = pa.array([dt.datetime(2026, 1, 31, 5)])
    pq.write_table(pa.table({"at": day, "text": [key]}), tmp_path / "a.parquet")
    with pytest.raises(SliceError, match=rf"'%Y-%m-%d'.*key is '{key}'.*key_format"):
        plan_of(tmp_path, source__column="at", slice_key=key, source__on_empty="skip")
    assert plan_of(tmp_path, source__column="text", slice_key=key).rows == 1


@pytest.mark.parametrize(("zone", "slice_format", "key"), [
    ("UTC", "%Y-%m-%dT%H:%M:%S", "2028-02-29T12:00:00"), ("UTC", "%G-W%V", "2028-W09"),
    ("UTC", "%Y-%j", "2028-060"), ("UTC", "%Y-W%W", "2028-W09"), ("UTC", "%m-%d", "02-29"),
    ("UTC", "%B %y", "February 28"), ("UTC", "%F", "2028-02-29"), ("UTC", "week %V, 100%%", "week 09, 100%"),
    ("America/Sao_Paulo", "%Y-%m-%d %Z", "2028-02-29 -03"), ("+05:30", "%Y-%m-%dT%H%z", "2028-02-29T17+0530"),
])  # fmt: skip
def test_key_that_a_date_is_written_as_is_none_to_refuse(
    tmp_path: Path, zone: str, slice_format: str, key: str
) -> None:
    at = pa.array([dt.datetime(2028, 2, 29, 12, tzinfo=dt.UTC)], pa.timestamp("s", tz="UTC"))
    pq.write_table(pa.table({"at": at}), tmp_path / "a.parquet")
    given = {"source__column": "at", "slice_timezone": zone, "source__slice_format": slice_format}
    assert plan_of(tmp_path, slice_key=key, **given).rows == 1


def test_other_days_of_a_dataset_root_are_never_published_as_this_day(tmp_path: Path) -> None:
    for day in ("2026-01-30", "2026-01-31"):
        (tmp_path / f"ds={day}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"ds={day}" / "a.parquet")
    for path in (tmp_path, f"{tmp_path}/ds=2026-*/"):
        with pytest.raises(SliceError, match=r"also holds ds=2026-01-30.*source.column='ds'"):
            plan_of(path)


def test_folders_of_other_days_are_known_by_any_name(tmp_path: Path) -> None:
    for day in ("2026-01-30", "2026-01-31"):
        (tmp_path / f"day={day}" / "loaded=2026-02-02").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"day={day}" / "loaded=2026-02-02" / "a.parquet")
    with pytest.raises(SliceError, match=r"also holds day=2026-01-30.*source.column='day'"):
        plan_of(tmp_path)
    assert plan_of(f"{tmp_path}/day={{slice}}").rows == plan_of(tmp_path, source__column="day").rows == 1
    assert plan_of(tmp_path, slice_key="2026-01", source__slice_format="%Y-%m").rows == 2
    assert plan_of(tmp_path, slice_key="all").rows == 2
    assert plan_of(f"{tmp_path}/day=2026-01-3*").rows == 2


def test_slice_column_is_compared_in_the_slices_timezone(tmp_path: Path) -> None:
    evening = dt.datetime(2026, 1, 30, 20, 0, 0, 123, tzinfo=dt.UTC)
    table = pa.table({"at": pa.array([evening], pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, tmp_path / "a.parquet")
    taipei = {"source__column": "at", "slice_timezone": "Asia/Taipei"}
    assert plan_of(tmp_path, **taipei).rows == 1
    instant = {"slice_key": "2026-01-31T04:00:00+0800", "source__slice_format": "%Y-%m-%dT%H:%M:%S%z"}
    assert plan_of(tmp_path, **taipei, **instant).rows == 1
    assert plan_of(tmp_path, source__column="at").rows == 0


@pytest.mark.parametrize(("one", "other"), [
    (pa.array([2**53 + 1]), pa.array([1.5])),
    (pa.array([2**60], pa.timestamp("us")), pa.array([1], pa.timestamp("ns"))),
])  # fmt: skip
def test_parquet_files_whose_union_would_change_values_are_refused(
    tmp_path: Path, one: pa.Array, other: pa.Array
) -> None:
    pq.write_table(pa.table({"x": one}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": other}), tmp_path / "b.parquet")
    with pytest.raises(SliceError, match=r"a\.parquet: column 'x'"):
        plan_of(tmp_path)


def test_column_that_a_later_file_lacks_is_null_there(tmp_path: Path) -> None:
    pq.write_table(
        pa.table([[1], [2]], schema=pa.schema([pa.field("i", pa.int8(), False), ("x", pa.int8())])),
        tmp_path / "a.parquet",
    )
    pq.write_table(pa.table({"x": pa.array([3], pa.int8())}), tmp_path / "b.parquet")
    assert rows_of(plan_of(tmp_path)) == [{"i": 1, "x": 2}, {"i": None, "x": 3}]


def test_json_numbers_are_never_silently_rounded(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 9007199254740993, "x": 1e300}\n{"id": 1.5, "x": 2}\n')
    with pytest.raises(SliceError, match=r"a\.jsonl.*'id'.*9007199254740993.*source.column_types"):
        plan_of(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"id": 12345678901234567890, "x": 1.5}\n')
    typed = plan_of(tmp_path, source__column_types={"id": "uint64"})
    assert rows_of(typed) == [{"id": 12345678901234567890, "x": 1.5}]
    (tmp_path / "a.jsonl").write_text('{"id": 9007199254740993, "x": 1.5}\n')
    assert rows_of(plan_of(tmp_path)) == [{"id": 9007199254740993, "x": 1.5}]


def test_long_csv_record_and_texts_such_as_na_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'a,f\n"{"x" * 3_000_000}",NaN\nNA,\n')
    rows = rows_of(plan_of(tmp_path, source__column_types={"f": "float64"}))
    assert len(rows[0]["a"]) == 3_000_000
    assert rows[0]["f"] != rows[0]["f"]
    assert rows[1] == {"a": "NA", "f": None}


def test_hidden_files_and_folders_are_skipped(tmp_path: Path) -> None:
    for name in ("a.parquet", "_manifest.parquet", ".hidden.parquet", "_checkpoint/b.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / name)
    assert plan_of(tmp_path).files == 1


def test_own_tables_of_a_lake_are_no_input_of_it(tmp_path: Path) -> None:
    """A glob over all tables also matches what this one and earlier slices wrote beside it."""
    folders = (
        "out/ds=2026-01-31",
        "out.ray_llm/ds=2026-01-30",
        "out.quarantine/ds=2026-01-31",
        "out.trial/a",
    )
    for folder in ("100% of it ü/part one", "out.other", *folders):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"x": [folder]}), tmp_path / folder / "a.parquet")
    for glob in ("*", "*/*"):
        plan = plan_of(f"{tmp_path}/{glob}", output_path=f"{tmp_path}/out")
        assert {r["x"] for r in rows_of(plan)} == {"100% of it ü/part one", "out.other"}


def test_slice_column_of_bytes_or_hostile_text_selects_its_rows(tmp_path: Path) -> None:
    for values in (
        pa.array([b"2026-01-31", b"\xff", None]),
        pa.array([b"2026-01-31", b"\xff", None]).view(pa.string()),
        pa.array([1769817600 * 10**6, 2**63 - 1, -(2**63)], pa.timestamp("us")),
    ):
        pq.write_table(pa.table({"day": values, "n": [0, 1, 2]}), tmp_path / "a.parquet")
        assert rows_of(plan_of(tmp_path, source__column="day", columns=["n"])) == [{"n": 0}]
    pq.write_table(pa.table({"day": [["2026-01-31"]]}), tmp_path / "a.parquet")
    with pytest.raises(SliceError, match=r"source.column 'day' is list<.*has no text to compare"):
        plan_of(tmp_path, source__column="day")


def test_max_rows_keeps_the_first_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet", row_group_size=4)
    plan = plan_of(tmp_path, source__max_rows=6)
    assert [r["x"] for r in rows_of(plan)] == [0, 1, 2, 3, 4, 5]
    assert plan.rows == 6


def test_unit_with_more_rows_than_the_ledger_counts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MAX_UNIT_ROWS", 5)
    for rows, group in ((10, 5), (6, 6)):
        pq.write_table(
            pa.table({"name": ["x"] * rows}), tmp_path / f"{rows:02}.parquet", row_group_size=group
        )
        if rows == 10:
            assert len(plan_of(tmp_path).units) == 2
    with pytest.raises(SliceError, match=r"/06.parquet has 6 rows that are read together, .* may have 5"):
        plan_of(tmp_path)


def test_input_without_files_or_rows_is_an_empty_plan(tmp_path: Path) -> None:
    assert plan_of(tmp_path / "nowhere").files == 0
    assert plan_of(tmp_path / "no*where").rows == 0
    (tmp_path / "a.csv").write_text("only,header\n")
    plan = plan_of(tmp_path)
    assert (plan.rows, plan.schema.names) == (0, ["only", "header"])


@pytest.mark.parametrize(("suffix", "header", "line", "broken", "error"), [
    ("csv", ["n,x"], "{},x", "700,x,too many", "row 700: .*Expected 2 columns, got 3"),
    ("jsonl", [], '{{"n": {}}}', '{"n": 700', r"(row 70\d|in or after row)"),
])  # fmt: skip
def test_broken_line_names_file_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    suffix: str, header: list[str], line: str, broken: str, error: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(text_module, "TEXT_RANGE_BYTES", 1000)
    lines = [line.format(i) for i in range(1, 1001)]
    lines[699] = broken
    (tmp_path / f"a.{suffix}").write_text("\n".join([*header, *lines]))
    with pytest.raises(SliceError, match=rf"a\.{suffix} .*{error}"):
        plan_of(tmp_path)


def test_truncated_gzip_names_the_file(tmp_path: Path) -> None:
    packed = gzip.compress(b"n\n" + b"1\n" * 100_000)
    (tmp_path / "b.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(SliceError, match=r"b\.csv\.gz"):
        plan_of(tmp_path / "b.csv.gz")


@pytest.mark.parametrize(("files", "error"), [
    ({"a.csv": "x,x\n1,2\n"}, "twice: 'x'"), ({"a.txt": "x\n"}, "source.format"),
    ({"a.csv": "x\n1\n", "b.jsonl": '{"x": 1}\n'}, "several formats"),
    ({"a.jsonl": '{"x": 1}\n', "b.jsonl": '{"x": {"y": 1}}\n'}, r"'x' is .*b\.jsonl"),
    ({"a.csv": "ds\n1\n"}, r"'.../slice=\{slice\}'"),
    ({"a.csv": 'x\na\n"b\nc"\n"never closed\nx\n'}, r"a\.csv: a quote that is opened in row 3 "),
    ({"a.csv": '"x\n1\n'}, "a quote that is opened in the record at byte 0 "),
])  # fmt: skip
def test_unreadable_input_is_an_error_that_says_why(
    tmp_path: Path, files: dict[str, str], error: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SliceError, match=error):
        plan_of(tmp_path)


def test_storage_that_cannot_be_opened_names_what_is_missing() -> None:
    with pytest.raises(SliceError, match="gcsfs"):
        plan_of("gs://bucket/x")


@pytest.mark.parametrize(("data", "options", "rows"), [
    (
        b'name,n\n"a \\"b\\", c",1\nd\\,e,2\n"two\nlines",3\n', {"escape_char": "\\"},
        [('a "b", c', "1"), ("d,e", "2"), ("two\nlines", "3")],
    ),
    (b'name;n\n"a ""b"", c";1\n\'d,e\';2\n', {"delimiter": ";"}, [('a "b", c', "1"), ("'d,e'", "2")]),
])  # fmt: skip
def test_csv_in_another_dialect_is_read_as_the_options_say(
    tmp_path: Path, data: bytes, options: dict[str, str], rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "TEXT_RANGE_BYTES", 16)
    (tmp_path / "a.csv").write_bytes(data)
    plan = plan_of(tmp_path / "a.csv", source__csv=options)
    assert rows_of(plan) == [{"name": a, "n": b} for a, b in rows]
    if "delimiter" not in options:
        assert len(plan.units) == 1
    assert plan_of(tmp_path / "a.csv", source__csv=options).input_hash == plan.input_hash


def test_wrong_encoding_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"name\n\x81\n")
    with pytest.raises(SliceError, match=r"b\.csv is not written in ascii"):
        plan_of(tmp_path / "b.csv", source__encoding="ascii")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.text('ab," \n', max_size=6)] * 2), min_size=1, max_size=12), st.integers(0, 9))
def test_blocks_of_a_csv_file_are_cut_where_its_records_end(rows: list[tuple[str, str]], stray: int) -> None:
    """Also where a quote stands within a field that is not quoted, as in 12" for inches."""
    lines = ["{},{}".format(*('"{}"'.format(c.replace('"', '""')) for c in row)) for row in rows]
    lines.insert(stray % (len(lines) + 1), '12" disk,5" pipe')
    data = ("\n".join(["x,y", *lines]) + "\n").encode()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder, "a.csv").write_bytes(data)
        whole = rows_of(plan_of(Path(folder)))
        patch.setattr(text_module, "TEXT_RANGE_BYTES", 16)
        assert rows_of(plan_of(Path(folder))) == whole


def test_line_that_is_nested_too_deeply_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": ' + "[" * 5000 + "]" * 5000 + "}\n")
    with pytest.raises(SliceError, match=r"a\.jsonl.*row 1"):
        plan_of(tmp_path)


@pytest.mark.parametrize("line", ["null", "[1]", "3", '"x"'])
def test_line_that_is_not_an_object_is_an_error_with_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{line}\n{{"a": 1}}\n')
    with pytest.raises(SliceError, match=r"a\.jsonl.*row 1"):
        plan_of(tmp_path)


@pytest.mark.parametrize(("name", "line", "bad"), [
    ("a.jsonl", '{"n": 1}\n', "[]\n"), ("a.jsonl", '{"n": 1}\n', '{"n": x}\n'), ("a.csv", "1,2\n", "1,2,3\n"),
])  # fmt: skip
def test_rows_of_a_file_are_counted_from_1_wherever_an_error_names_one(
    tmp_path: Path, name: str, line: str, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "TEXT_RANGE_BYTES", len(line))
    header = "n,x\n" if name.endswith("csv") else ""
    (tmp_path / name).write_text(header + 4 * line + bad)
    with pytest.raises(SliceError) as refused:
        plan_of(tmp_path, prompt="{n}")
    failure = refused.value.failure
    assert failure.place.row == 5
    said = re.findall(r"\brow #?(\d+)", failure.message, re.IGNORECASE)
    assert said
    assert set(said) == {"5"}
