"""All tasks, nodes and runs of a slice agree on the types of postprocess's columns: what they answer fits
into one table, and nothing is answered twice for it."""

from __future__ import annotations

import dataclasses
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.agreed_columns import AgreedColumns
from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader
from airflow_provider_raydatallm.processor.store.fragments import (
    _concat,
    fragment_fields,
    fragment_ranges,
    put_fragment,
)
from airflow_provider_raydatallm.processor.store.ledger import read_ledger
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.unit.processor.request.answers.test_shape import parse

UNIT = "a" * 16
#: What `postprocess` returns, by the row's number.
RETURNED: dict[int, Any] = {}


def postprocess(row: dict[str, Any]) -> dict[str, Any]:
    return {"v": RETURNED[int(row["name"])]}


def declared(row: dict[str, Any]) -> Declared:
    return {"v": RETURNED[int(row["name"])]}


class Declared(TypedDict):
    v: int | None


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": [str(i) for i in range(40)]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
        postprocess=f"{__name__}:postprocess", quality__max_quarantine=1.0,
    )  # fmt: skip


def returns(values: dict[int, Any], default: Any) -> None:
    RETURNED.clear()
    RETURNED.update({i: values.get(i, default) for i in range(40)})


def published(job: SliceJob) -> pa.ChunkedArray:
    return pq.read_table(job.slice_path, partitioning=None).column("v")


def test_integers_first_and_floats_later_are_published_as_floats(job: SliceJob) -> None:
    returns({35: 0.5}, 1)
    cluster = InProcess()
    report = run(job, cluster)
    assert (report.counts.succeeded, cluster.answered) == (40, 40)
    column = published(job)
    assert column.type == pa.float64()
    assert column.to_pylist() == [0.5 if i == 35 else 1.0 for i in range(40)]


def test_large_integers_stay_exact_and_a_float_beside_them_is_its_rows_failure(job: SliceJob) -> None:
    returns({3: 2**53 + 1, 35: 0.5}, 1)
    report = run(job)
    assert (report.counts.succeeded, report.counts.quarantined) == (39, 1)
    assert published(job).to_pylist() == [2**53 + 1 if i == 3 else 1 for i in range(40) if i != 35]


def test_first_group_without_a_value_decides_nothing(job: SliceJob) -> None:
    returns(dict.fromkeys(range(15)), "text")
    assert run(job).counts.succeeded == 40
    assert published(job).to_pylist() == [None if i < 15 else "text" for i in range(40)]


def test_odd_value_in_the_first_group_does_not_decide_its_column(job: SliceJob) -> None:
    returns({0: ["odd"], 1: 7}, "text")
    report = run(job)
    assert (report.counts.succeeded, report.counts.quarantined) == (38, 2)
    assert set(published(job).to_pylist()) == {"text"}


def test_structs_gain_fields_and_lists_their_items_types(job: SliceJob) -> None:
    returns({0: {"a": 1, "l": []}, 15: {"b": "x"}, 25: {"a": 0.5, "l": [None, 2]}}, None)
    assert run(job).counts.succeeded == 40
    values = published(job).to_pylist()
    assert values[0] == {"a": 1.0, "l": [], "b": None}
    assert values[15] == {"a": None, "l": None, "b": "x"}
    assert values[25] == {"a": 0.5, "l": [None, 2], "b": None}


class Killed(Exception):
    pass


@pytest.mark.parametrize("later", [0.5, "text"])
def test_types_hold_across_a_crash_and_no_answer_is_paid_for_twice(job: SliceJob, later: Any) -> None:
    """`later`: of a type that fits the first one, and of one that does not."""
    returns(dict.fromkeys(range(20, 40, 2), later), 1)
    batches = iter(range(100))

    def kill(batch: pa.Table) -> None:
        if next(batches) == 2:
            raise Killed

    first = InProcess(before_batch=kill)
    with pytest.raises(Killed):
        run(job, first)
    second = InProcess()
    report = run(job, second)
    assert first.answered + second.answered == 40
    if later == 0.5:
        assert report.counts.succeeded == 40
        assert published(job).to_pylist() == [0.5 if i >= 20 and i % 2 == 0 else 1.0 for i in range(40)]
    else:
        assert (report.counts.succeeded, report.counts.quarantined) == (30, 10)
        assert published(job).to_pylist() == [1] * 30


def test_retried_rows_fit_the_published_ones(job: SliceJob) -> None:
    returns({35: "text", 36: {1}}, 2**53 + 1)
    assert run(job).counts.quarantined == 2
    returns({35: 0.5, 36: 7}, None)
    report = run(changed(job, rerun__retry_quarantined=True))
    assert report.counts.quarantined == 1
    assert published(job).to_pylist() == [7 if i == 36 else 2**53 + 1 for i in range(40) if i != 35]


def test_declared_types_hold_from_the_first_row_and_are_checked_before_any_is_paid_for(job: SliceJob) -> None:
    returns({0: 0.5, 1: "text", 2: None}, 1)
    report = run(changed(job, postprocess=f"{__name__}:declared"))
    assert (report.counts.succeeded, report.counts.quarantined) == (38, 2)
    column = published(job)
    assert (column.type, column.to_pylist()[0]) == (pa.int64(), None)
    cluster = InProcess()
    clash = changed(job, postprocess=f"{__name__}:clash", output_path=f"{job.output_path}2")
    with pytest.raises(SliceError, match="returned the column 'name': the input"):
        run(clash, cluster)
    assert cluster.answered == 0


@dataclasses.dataclass
class Clash:
    name: str


def clash(row: dict[str, Any]) -> Clash:
    return Clash("a")


def test_declared_column_without_a_value_has_its_type(job: SliceJob) -> None:
    returns({}, None)
    run(changed(job, postprocess=f"{__name__}:declared"))
    assert published(job).type == pa.int64()


def test_tasks_that_decide_at_the_same_time_decide_the_same(tmp_path: Path) -> None:
    """Of 16 tasks each has a type of its own first; whoever decides, the others' rows fit or fail."""
    values: list[Any] = [1, 0.5, "a", 2**60, [1], {"a": 1}, None, True] * 2

    def task(i: int) -> tuple[pa.Table, pa.Table]:
        parser = TextParser(job_of(input_path="/i", output_path="/o"), lambda row: {"v": values[i]})
        return parse(["x"] * 3, parser=parser.agreeing_in(str(tmp_path), "c"))

    with ThreadPoolExecutor(16) as pool:
        tables = list(pool.map(task, range(16)))
    assert all(rows.num_rows + failed.num_rows == 3 for rows, failed in tables)
    together = _concat([rows for rows, _ in tables if rows.num_rows])
    assert together.num_rows >= 3 * 4
    agreed = AgreedColumns({}, str(tmp_path), "c").agree(lambda types: types)
    assert list(agreed) == ["v"]


def test_damaged_document_is_skipped(tmp_path: Path) -> None:
    columns = AgreedColumns({}, str(tmp_path), "c")
    columns.agree(lambda types: {"v": "int"})
    columns.agree(lambda types: {"v": "float"})
    (tmp_path / "c" / "columns-000002.json").write_text("{")
    again = AgreedColumns({}, str(tmp_path), "c")
    assert again.agree(lambda types: types) == {"v": "int"}
    assert again.agree(lambda types: {"v": "bigint"}) == {"v": "bigint"}
    assert (tmp_path / "c" / "columns-000003.json").exists()


cell = st.one_of(
    st.none(), st.integers(-(2**54), 2**54), st.floats(allow_nan=False), st.text(max_size=2), st.dates(),
    st.datetimes(), st.decimals(allow_nan=False, allow_infinity=False, places=2), st.booleans(),
)  # fmt: skip
cells = st.recursive(
    cell,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, min_size=1),
    max_leaves=3,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(cells, min_size=1, max_size=3), min_size=1, max_size=5), st.integers())
def test_fragments_of_all_tasks_fit_into_one_table(groups: list[list[Any]], seed: int) -> None:
    """Tasks and runs in any order, each with what it knows: publishing unites the fragments."""
    with tempfile.TemporaryDirectory() as folder:
        store, rng = Store(folder), random.Random(seed)
        values = [value for group in groups for value in group]
        tasks = [
            TextParser(
                job_of(input_path="/i", output_path="/o"), lambda row: {"v": values[int(row["answer"])]}
            ).agreeing_in(folder, "c")
            for _ in range(2)
        ]  # fmt: skip
        start = answered = 0
        for group in groups:
            texts: list[str | None] = [str(start + i) for i in range(len(group))]
            rows, _ = parse(texts, parser=rng.choice(tasks))
            offsets = pa.array([o + start for o in rows.column("__offset").to_pylist()], pa.int64())
            rows = rows.set_column(rows.schema.get_field_index("__offset"), "__offset", offsets)
            if rows.num_rows:
                put_fragment(store, "c", "rows", rows, [UNIT], 1)
                answered += rows.num_rows
            start += len(group)
        units = {UNIT: 0}
        ledger = read_ledger(store.names("c"), units, lambda n: fragment_ranges(store, f"c/{n}", units))
        if not ledger.outcomes:
            return
        fields = fragment_fields(store, "c", ledger.rows)
        [pieces] = ledger.rows.divide([[0]], 1)
        published = FragmentReader(store, "c", pieces, units, fields).window(0, 0, start)
        assert [len(published[0]), published[1].num_rows] == [answered, answered]
        for offset, value in zip(published[0], published[1].column("v").to_pylist(), strict=True):
            assert (value is None) == (values[offset] is None), (values[offset], value)
