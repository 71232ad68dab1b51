"""What every input format promises, tested on files of each of them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.input_formats import FormatName
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.formats import text
from airflow_provider_raydatallm.processor.input.formats.base import FileScan
from airflow_provider_raydatallm.processor.input.formats.options import ReadOptions
from airflow_provider_raydatallm.processor.input.formats.registry import FORMATS
from airflow_provider_raydatallm.processor.input.listing import get_input_file
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.input.types.declared import parse_type
from airflow_provider_raydatallm.processor.input.types.lossless import ValueRange
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from tests.support.in_process import InProcess, job_of, run_in_process
from tests.support.input_formats import WRITERS, write_input

ROWS = 100
#: Declared, since text has no types.
TYPES = {
    "n": "int64", "amount": "decimal128(12, 2)", "at": "timestamp[us]", "day": "date32", "none": "int64",
}  # fmt: skip
TABLE = pa.table(
    {
        "n": pa.array([None if i % 7 == 3 else i - 20 for i in range(ROWS)], pa.int64()),
        "amount": pa.array([Decimal(i * 100 + 25) / 100 for i in range(ROWS)], pa.decimal128(12, 2)),
        "at": pa.array([dt.datetime(2026, 1, 31, 5, 0, 0, i + 1) for i in range(ROWS)], pa.timestamp("us")),
        "day": pa.array([dt.date(2026, 1, 1) + dt.timedelta(i) for i in range(ROWS)], pa.date32()),
        "none": pa.array([None] * ROWS, pa.int64()),
        "x": [f'row {i:04}, "ünï"' for i in range(ROWS)],
    }
)


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FormatName:
    monkeypatch.setattr(text, "TEXT_RANGE_BYTES", 512)
    found: FormatName = request.param
    return found


def file_in(folder: Path, name: FormatName, table: pa.Table = TABLE, stem: str = "a") -> Path:
    path = folder / f"{stem}.{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_input(path, table, 20)
    return path


def job(path: Path, **given: Any) -> SliceJob:
    return job_of(**{"input_path": str(path), "output_path": "/o", "source__column_types": TYPES, **given})


def plan_of(path: Path, **given: Any) -> Plan:
    return make_plan(job(path, **given))


def rows_of(plan: Plan, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for unit in plan.units for table in plan.read(unit, columns) for row in table.to_pylist()]


def test_formats_and_their_names_in_the_contract_are_the_same() -> None:
    assert tuple(FORMATS) == get_args(FormatName)
    assert set(FORMATS) == set(WRITERS)


def test_file_is_known_by_each_extension_of_its_format_and_by_that_alone(
    tmp_path: Path, name: FormatName
) -> None:
    others = [ext for one in FORMATS.values() if one.name != name for ext in one.extensions]
    path = file_in(tmp_path, name)
    for extension in FORMATS[name].extensions:
        assert extension not in others
        path = path.rename(tmp_path / f"a{extension.upper()}")
        assert plan_of(tmp_path).format == name
    path.rename(tmp_path / "a.bin")
    assert plan_of(tmp_path, source__format=name).rows == ROWS


def test_ranges_follow_each_other_and_have_all_rows(tmp_path: Path, name: FormatName) -> None:
    plan = plan_of(file_in(tmp_path, name))
    ranges = [unit.range for unit in plan.units]
    assert len(ranges) > 2
    ends = [part.first_row + part.rows for part in ranges]
    assert [part.first_row for part in ranges] == [0, *ends[:-1]]
    assert plan.rows == ends[-1] == ROWS
    assert rows_of(plan) == TABLE.to_pylist()


def test_range_has_the_same_rows_whenever_and_however_it_is_read(tmp_path: Path, name: FormatName) -> None:
    plan = plan_of(file_in(tmp_path, name))
    stored = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert stored == plan
    with stored.open() as reader:
        for unit in [*reversed(plan.units), *plan.units]:
            tables = list(reader.read(unit))
            first = unit.range.first_row
            assert pa.concat_tables(tables).to_pylist() == TABLE.slice(first, unit.rows).to_pylist()


def test_plan_of_another_form_is_none(tmp_path: Path, name: FormatName) -> None:
    """Its folder is made again; nothing is read by it."""
    stored = json.loads(json.dumps(plan_of(file_in(tmp_path, name)).to_json()))
    first = stored["units"][0]
    for wrong in (
        {"units": [[*first, 7]]}, {"units": [first[:3]]}, {"units": [[*first[:4], None, None]]},
        {"units": [[*first[:-1], "0"]]}, {"format": "tape"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"unit|KeyError|TypeError"):
            Plan.from_json({**stored, **wrong})


def test_chosen_columns_are_read_in_their_order(tmp_path: Path, name: FormatName) -> None:
    path = file_in(tmp_path, name)
    plan = plan_of(path, columns=["x", "n"])
    assert rows_of(plan) == TABLE.select(["x", "n"]).to_pylist()
    assert rows_of(plan_of(path), ["day", "n"]) == TABLE.select(["day", "n"]).to_pylist()
    with plan.open() as reader:
        assert [reader.count_rows(unit) for unit in plan.units] == [unit.rows for unit in plan.units]


def test_declared_type_is_the_columns_type(tmp_path: Path, name: FormatName) -> None:
    narrow = {**TYPES, "n": "int16", "amount": "decimal128(6, 3)"}
    plan = plan_of(file_in(tmp_path, name), source__column_types=narrow)
    assert {n: plan.schema.field(n).type for n in narrow} == {n: parse_type(n, t) for n, t in narrow.items()}
    assert rows_of(plan, ["n"]) == TABLE.select(["n"]).to_pylist()


def test_declared_type_that_lacks_a_value_is_refused_before_a_row_is_paid(
    tmp_path: Path, name: FormatName
) -> None:
    given = {"n": [1] * 70 + [300], "x": ["a"] * 71}
    path = file_in(tmp_path, name, pa.table(given))
    cluster = InProcess()
    wrong = job(path, output_path=f"{tmp_path}/out", source__column_types={"n": "int8"}, prompt="{x}")
    with pytest.raises(SliceError, match=f"{path}.*'n'|'n'.*{path}") as refused:
        run_in_process(wrong, cluster)
    assert (refused.value.kind, cluster.answered) == ("input", 0)


def test_wider_values_than_the_table_has_change_its_type_where_that_is_accepted(
    tmp_path: Path, name: FormatName
) -> None:
    for key, kind, value in (("2026-01-30", "int32", 1), ("2026-01-31", "int64", 2**40)):
        path = file_in(tmp_path / key, name, pa.table({"n": [value], "x": ["a"]}))
        given = {"slice_key": key, "source__column_types": {"n": kind}, "prompt": "{x}"}
        wide = job(path, output_path=f"{tmp_path}/out", publish__on_schema_change="accept", **given)
        run_in_process(wide)
        published = pq.read_table(wide.slice_path, partitioning=None)["n"]
        assert (str(published.type), published.to_pylist()) == (kind, [value])


def test_range_of_a_columns_values_is_that_of_all_rows(tmp_path: Path, name: FormatName) -> None:
    path = file_in(tmp_path, name)
    fs, _ = open_fs(str(path))
    types = {column: parse_type(column, kind) for column, kind in TYPES.items()}
    one = FORMATS[name](fs, ReadOptions(types=types))
    file = get_input_file(fs, str(path))
    scan: FileScan = one.scan(file)
    assert scan.schema.names == TABLE.column_names
    found = {column: one.value_range(file, scan, (column,)) for column in TYPES}
    at = TABLE["at"].cast(scan.schema.field("at").type).cast(pa.int64())
    day = TABLE["day"].cast(pa.int32())[0].as_py()
    assert found == {
        "n": ValueRange(-20, ROWS - 21), "amount": ValueRange(25, (ROWS - 1) * 100 + 25),
        "at": ValueRange(at[0].as_py(), at[-1].as_py()), "day": ValueRange(day, day + ROWS - 1),
        "none": None,
    }  # fmt: skip


def test_file_of_no_bytes_has_no_rows_or_is_damaged(tmp_path: Path, name: FormatName) -> None:
    file_in(tmp_path, name)
    empty = tmp_path / f"b.{name}"
    empty.touch()
    if FORMATS[name].may_be_empty:
        assert rows_of(plan_of(tmp_path)) == TABLE.to_pylist()
    else:
        with pytest.raises(SliceError, match=str(empty)) as refused:
            plan_of(tmp_path)
        assert refused.value.kind == "input"


def test_file_without_rows_adds_none(tmp_path: Path, name: FormatName) -> None:
    file_in(tmp_path, name, TABLE.slice(0, 0), "0")
    assert plan_of(tmp_path, source__column_types={}).rows == 0
    file_in(tmp_path, name)
    assert rows_of(plan_of(tmp_path)) == TABLE.to_pylist()


@pytest.mark.parametrize("damage", ["cut in the last row", "cut in half", "no such format"])
def test_damaged_file_is_an_error_that_names_it(tmp_path: Path, name: FormatName, damage: str) -> None:
    path = file_in(tmp_path, name)
    content = path.read_bytes()
    last = content.index(b"row 0099") + 4
    half = content.index(b"row 0050") + 4
    damaged = {"cut in half": content[:half], "cut in the last row": content[:last]}
    path.write_bytes(damaged.get(damage, bytes(range(255, 0, -1)) * 20))
    with pytest.raises(SliceError, match=str(path)) as refused:
        plan_of(tmp_path)
    assert refused.value.kind == "input"


def test_file_that_changed_since_it_was_planned_is_never_read(tmp_path: Path, name: FormatName) -> None:
    path = file_in(tmp_path, name)
    plan = plan_of(path)
    write_input(path, TABLE.slice(1))
    for read in (lambda: plan.check_unchanged(plan.units), lambda: rows_of(plan)):
        with pytest.raises(SliceError, match="changed while the slice ran") as refused:
            read()
        assert refused.value.kind == "transient"


def test_no_row_is_read_of_a_file_that_is_written_to_meanwhile(tmp_path: Path, name: FormatName) -> None:
    path = file_in(tmp_path, name)
    plan = plan_of(path)
    reader = plan.reader()
    assert next(reader.read(plan.units[0])).num_rows
    with path.open("r+b") as file:
        file.write(path.read_bytes()[:1])  # which is there already
    with pytest.raises(SliceError, match="changed while the slice ran"):
        next(reader.read(plan.units[1]))


def test_hive_folders_become_columns_and_select_the_slice(tmp_path: Path, name: FormatName) -> None:
    for day in ("2026-01-30", "2026-01-31"):
        for country in ("DE", "FR"):
            file_in(tmp_path / f"ds={day}/country={country}", name, pa.table({"x": [f"{day}{country}"]}))
    expected = [{"x": f"2026-01-31{c}", "country": c} for c in ("DE", "FR")]
    given: dict[str, Any] = {"source__column_types": {}}
    assert rows_of(plan_of(tmp_path, source__column="ds", **given)) == expected
    assert rows_of(plan_of(tmp_path / "ds={slice}", **given)) == expected
    assert rows_of(plan_of(tmp_path / f"ds={{slice}}/*/*.{name}", **given)) == expected
    by_country = {"source__column": "country", "slice_key": "DE", "output_path": "/o/c={slice}"}
    assert plan_of(tmp_path, **by_country, **given).rows == 2
