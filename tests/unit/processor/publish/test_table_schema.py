"""What the slice's table cannot hold is refused before a row is paid; the rest is published as it is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.publish.table_schema import check_columns
from tests.support.in_process import InProcess, changed, job_of, run_in_process


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    return job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")


def check(job: SliceJob, fields: Sequence[pa.Field] = ()) -> None:
    check_columns(job, make_plan(job), fields)


def test_answer_column_never_overwrites_another_column(job: SliceJob) -> None:
    with pytest.raises(SliceError, match="'name' is also a column of the input"):
        check(job, [pa.field("name", pa.string())])
    with pytest.raises(SliceError, match="slice folder"):
        check(job, [pa.field("ds", pa.string())])


def test_input_column_that_the_quarantine_needs_is_refused(job: SliceJob, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a"], "__row": [1]}), tmp_path / "in.parquet")
    with pytest.raises(SliceError, match=r"'__row', a name that rows in quarantine need.*columns="):
        check(job)
    check(changed(job, columns=["name"]))


def test_folder_above_the_table_never_hides_a_column(job: SliceJob, tmp_path: Path) -> None:
    for above in (
        changed(job, output_path=f"{tmp_path}/NAME=b/out"),
        changed(job, publish__quarantine_path=f"{tmp_path}/name=b/bad"),
        changed(job, output_path=f"{tmp_path}/answer=b/out"),
    ):
        cluster = InProcess()
        with pytest.raises(SliceError, match=r"lies below the folder '\w+=b': many readers would show"):
            run_in_process(above, cluster)
        assert cluster.answered == 0
    assert run_in_process(changed(job, output_path=f"{tmp_path}/names=b/out")).counts.succeeded == 2


def test_refused_column_costs_nothing_and_columns_is_the_cure(job: SliceJob, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"name": "a", "meta": {}}\n')
    other = changed(job, input_path=str(tmp_path / "in.jsonl"))
    cluster = InProcess()
    with pytest.raises(
        SliceError, match=r"column 'meta' is struct of 0 fields.*cannot be published.*columns="
    ):
        run_in_process(other, cluster)
    assert cluster.answered == 0
    assert run_in_process(changed(other, columns=["name"]), cluster).counts.succeeded == 1


@pytest.mark.parametrize("kind", [
    pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.string()), pa.struct([]), pa.binary(0),
    pa.dense_union([pa.field("a", pa.int8())]), pa.sparse_union([pa.field("a", pa.int8())]),
    pa.list_(pa.struct([])), pa.struct([("a", pa.struct([]))]), pa.decimal128(5, -2),
    pa.list_(pa.dense_union([pa.field("a", pa.int8())])), pa.string_view(), pa.list_(pa.binary_view()),
    pa.struct([("a", pa.list_(pa.int8(), 0))]),
], ids=str)  # fmt: skip
def test_answer_of_a_type_that_cannot_be_published_is_refused(job: SliceJob, kind: pa.DataType) -> None:
    with pytest.raises(SliceError, match=r"answer column 'answer' is .*another type from postprocess"):
        check(job, [pa.field("answer", kind)])


_EVERY_TYPE: dict[str, pa.Array] = {
    str(array.type): array
    for array in [
        pa.array([True, None, False]), pa.array([0.5, None, 2.0], pa.float16()),
        *(pa.array([1, None, 2], kind) for kind in (
            pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
            pa.float32(), pa.float64(), pa.date32(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
            pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "Asia/Taipei"),
            pa.timestamp("ns", "+02:00"), pa.duration("s"), pa.duration("ms"), pa.duration("us"),
            pa.duration("ns"), pa.decimal128(38, 3), pa.decimal128(5, 2), pa.decimal256(76, 3),
        )),
        *(pa.array(["a", None, "b"], kind) for kind in (
            pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.binary(1),
        )),
        pa.array([["a"], None, [None]], pa.list_(pa.large_string())),
        pa.array([["a"], None, []], pa.large_list(pa.string())),
        pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2)),
        pa.array([{"d": 1, "l": ["x"]}, None, {"d": None, "l": None}],
                 pa.struct([("d", pa.duration("s")), ("l", pa.large_list(pa.large_string()))])),
        pa.array([[("k", [1])], None, []], pa.map_(pa.string(), pa.list_(pa.int8()))),
        pa.array([[{"a": {"b": [1]}}], None, []]),
        pa.array([b"0123456789abcdef", None, b"fedcba9876543210"], pa.uuid()),
    ]
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", _EVERY_TYPE)
def test_column_of_any_other_type_is_published_as_it_is(job: SliceJob, tmp_path: Path, kind: str) -> None:
    table = pa.table({"name": ["a", "b", "c"], "x": _EVERY_TYPE[kind]})
    pq.write_table(table, tmp_path / "in.parquet")
    run_in_process(job)
    published = pq.read_table(job.slice_path, partitioning=None)
    assert published.drop_columns("answer").equals(table)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "published"), [
    (pa.array(["a", None], pa.string_view()), pa.string()),
    (pa.array([b"\xff", None], pa.binary_view()), pa.binary()),
    (pa.array([["a"], None], pa.list_(pa.string_view())), pa.list_(pa.string())),
    (pa.array([["a"], None], pa.list_view(pa.string())), pa.list_(pa.string())),
    (pa.array([[1], None], pa.large_list_view(pa.int8())), pa.list_(pa.int8())),
    (pa.array(["a", None]).dictionary_encode(), pa.string()),
    (pa.array([7, None], pa.timestamp("s", "UTC")), pa.timestamp("ms", "UTC")),
    (pa.array([7, None], pa.time32("s")), pa.time32("ms")),
    (pa.array([dt.date(2026, 1, 31), None], pa.date64()), pa.date32()),
    (pa.array([1, None], pa.decimal256(20, 2)), pa.decimal128(20, 2)),
    (pa.array(["{}", None], pa.json_()), pa.string()),
    (pa.FixedShapeTensorArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [2, 2]), pa.array([[1, 2, 3, 4], None], pa.list_(pa.int8(), 4))
    ), pa.list_(pa.int8(), 4)),
], ids=lambda value: str(getattr(value, "type", value)))  # fmt: skip
def test_column_of_a_type_with_a_plainer_twin_is_published_as_that(
    job: SliceJob, tmp_path: Path, given: pa.Array, published: pa.DataType
) -> None:
    pq.write_table(pa.table({"name": ["a", "b"], "x": given}), tmp_path / "in.parquet")
    plan = make_plan(job)
    assert plan.schema.field("x").type == published
    run_in_process(job)
    column = pq.read_table(job.slice_path, partitioning=None).column("x")
    values = given.storage if isinstance(given, pa.ExtensionArray) else given
    assert (column.type, column.to_pylist()) == (published, values.to_pylist())


def test_column_types_of_whole_seconds_are_published_as_milliseconds(job: SliceJob, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("name,at,day\na,2026-01-31 10:00:00,2026-01-31\n")
    types = {"at": "timestamp[s]", "day": "date64"}
    run_in_process(changed(job, input_path=f"{tmp_path}/in.csv", source__column_types=types))
    table = pq.read_table(job.slice_path, partitioning=None)
    assert table.schema.field("at").type == pa.timestamp("ms")
    assert table.select(["at", "day"]).to_pylist() == [
        {"at": dt.datetime(2026, 1, 31, 10), "day": dt.date(2026, 1, 31)}
    ]
