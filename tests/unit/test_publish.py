"""Fragments and publishing on a local folder, without Ray."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.processor import fragments as fragments_module
from airflow_provider_raydatallm.processor import publish
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.fragments import Fragments
from airflow_provider_raydatallm.processor.plan import Plan, make_plan
from airflow_provider_raydatallm.processor.store import Store
from airflow_provider_raydatallm.spec import Counts, Report, SliceJob


def answers(rows: list[tuple[int, int]]) -> pa.Table:
    return pa.table(
        {
            "__unit": pa.array([u for u, _ in rows], pa.int32()),
            "__offset": pa.array([o for _, o in rows], pa.int64()),
            "answer": [f"{u}-{o}" for u, o in rows],
        }
    )


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "in.parquet", row_group_size=4)
    return SliceJob(
        slice_key="k",
        input_path=str(tmp_path / "in.parquet"),
        output_path=str(tmp_path / "out"),
        model_source="m",
        prompt="x",
    )


@pytest.fixture
def plan(job: SliceJob) -> Plan:
    return make_plan(job)


def finished(store: Store, rows: list[tuple[int, int]]) -> Fragments:
    made = Fragments(store, "_checkpoint/a")
    for start in range(0, len(rows), 3):
        made.add(answers(rows[start : start + 3]))
    made.flush()
    return made


ALL = [(u, o) for u, n in enumerate((4, 4, 2)) for o in range(n)]


@pytest.mark.parametrize("fragment_rows", [1, 5, 100])
def test_answers_stand_beside_their_rows_in_input_order_whatever_order_they_came_in(
    job: SliceJob, plan: Plan, fragment_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments_module, "FRAGMENT_ROWS", fragment_rows)
    store = Store(job.slice_path)
    entry = publish.write_part(store, job, plan, finished(store, ALL[::-1]))
    part = Path(job.slice_path) / "part-00000.parquet"
    assert pq.read_table(part).to_pylist() == [{"x": i, "answer": f"{u}-{o}"} for i, (u, o) in enumerate(ALL)]
    assert entry == {
        "path": "part-00000.parquet", "rows": 10, "bytes": part.stat().st_size,
        "sha256": hashlib.sha256(part.read_bytes()).hexdigest(),
    }  # fmt: skip


@pytest.mark.parametrize(
    "rows", [ALL[:-1], [*ALL, ALL[3]], [r for r in ALL if r[0] != 1], [*ALL[:-1], ALL[0]]]
)
def test_slice_never_publishes_short_or_twice(job: SliceJob, plan: Plan, rows: list[tuple[int, int]]) -> None:
    store = Store(job.slice_path)
    made = finished(store, rows)
    with pytest.raises(SliceError):
        publish.write_part(store, job, plan, made)
    assert [n for n in store.names() if not n.startswith("_checkpoint")] == []


def test_success_is_written_last_and_the_folder_reads_as_a_table(job: SliceJob, plan: Plan) -> None:
    store = Store(job.slice_path)
    files = [publish.write_part(store, job, plan, finished(store, ALL))]
    assert publish.published(store) is None
    report = Report(
        outcome="published", slice_key="k", output_path=job.slice_path, fingerprint=job.fingerprint(),
        counts=Counts(planned=10, succeeded=10),
    )  # fmt: skip
    publish.write_manifest(store, job, plan, files, report)
    manifest = publish.published(store)
    assert manifest is not None
    assert manifest["files"] == files
    assert pq.read_table(job.slice_path).num_rows == 10
    assert Report.model_validate(json.loads((Path(job.slice_path) / "_report.json").read_text())) == report


def test_folder_of_somebody_else_is_not_touched(job: SliceJob) -> None:
    folder = Path(job.slice_path)
    folder.mkdir(parents=True)
    (folder / "precious.parquet").write_bytes(b"x")
    with pytest.raises(SliceError, match=r"precious\.parquet"):
        publish.published(Store(job.slice_path))


def test_answer_column_never_overwrites_an_input_column(job: SliceJob, plan: Plan) -> None:
    with pytest.raises(SliceError, match="'x'"):
        publish.check_columns(job, plan, [pa.field("x", pa.string())])
    with pytest.raises(SliceError, match="slice folder"):
        publish.check_columns(job, plan, [pa.field("ds", pa.string())])


def test_columns_that_parquet_cannot_hold_are_found_before_anything_is_spent(
    job: SliceJob, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"meta": {}}\n')
    other = SliceJob.model_validate({**job.model_dump(), "input_path": str(tmp_path / "in.jsonl")})
    with pytest.raises(SliceError, match=r"cannot be written as Parquet.*columns="):
        publish.check_columns(other, make_plan(other), [])


def test_run_that_died_while_publishing_does_not_block_the_next(job: SliceJob, plan: Plan) -> None:
    store = Store(job.slice_path)
    publish.write_part(store, job, plan, finished(store, ALL))
    store.remove("_checkpoint")
    assert publish.published(store) is None


def test_postprocess_columns_of_different_fragments_are_united(
    job: SliceJob, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments_module, "FRAGMENT_ROWS", 1)
    store = Store(job.slice_path)
    made = Fragments(store, "_checkpoint/a")
    values: list[Any] = [1, None, 2.5, 4]
    for i, (u, o) in enumerate(ALL):
        value = values[i % 4]
        made.add(answers([(u, o)]).append_column("n", pa.array([value])))
    made.flush()
    publish.write_part(store, job, plan, made)
    table = pq.read_table(Path(job.slice_path) / "part-00000.parquet")
    assert table.column("n").to_pylist() == [values[i % 4] for i in range(10)]
    assert table.schema.field("n").type == pa.float64()
