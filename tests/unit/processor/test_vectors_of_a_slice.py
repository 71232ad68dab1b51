"""Slices of vectors, from plan to publish: retried, extended, empty, and read by others as one table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import answer_table
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run

SIZE = 3
VECTOR = pa.list_(pa.float32(), SIZE)


def embed(batch: pa.Table, bad: str = "fail") -> pa.Table:
    """The length of a text, as often as a vector has numbers."""
    count = batch.num_rows
    texts = [json.loads(text)["messages"][-1]["content"] for text in batch.column("__request").to_pylist()]
    errors = ["ValueError: no" if text == bad else None for text in texts]
    return answer_table(
        batch, numbers=[None if text == bad else [float(len(text))] * SIZE for text in texts], error=errors,
        input_tokens=[1] * count, output_tokens=[0] * count, finished_at=[time.time()] * count,
        engine_seconds=[0.1] * count,
    )  # fmt: skip


def job_in(folder: Path, names: list[str], key: str = "2026-01-31", **given: Any) -> SliceJob:
    source = folder / "in" / key
    source.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"name": pa.array(names, pa.string())}), source / "a.parquet")
    return job_of(
        slice_key=key, input_path=str(source), output_path=f"{folder}/out", task="embed",
        max_quarantine_fraction=1.0, **given,
    )  # fmt: skip


def run_with(job: SliceJob, **given: Any) -> Any:
    return run(job, InProcess(answer=lambda batch: embed(batch, **given), batch=2))


def test_rows_in_quarantine_are_answered_again_and_the_others_keep_their_vectors(tmp_path: Path) -> None:
    job = job_in(tmp_path, ["a", "fail", "ccc"])
    run_with(job)
    report = run_with(changed(job, retry_quarantined=True), bad="")
    assert (report.counts.succeeded, report.counts.resumed) == (3, 2)
    published = pq.read_table(job.slice_path, partitioning=None).column("answer")
    assert (published.type, published.to_pylist()) == (VECTOR, [[1.0] * 3, [4.0] * 3, [3.0] * 3])


def test_slice_is_extended_by_new_files(tmp_path: Path) -> None:
    job = job_in(tmp_path, ["a"])
    run_with(job)
    pq.write_table(pa.table({"name": ["bb"]}), tmp_path / "in" / job.slice_key / "b.parquet")
    report = run_with(changed(job, on_input_change="extend"))
    assert (report.counts.succeeded, report.counts.resumed) == (2, 1)
    published = pq.read_table(job.slice_path, partitioning=None).column("answer")
    assert (published.type, published.to_pylist()) == (VECTOR, [[1.0] * 3, [2.0] * 3])


@pytest.mark.parametrize("names", [[], ["fail", "fail"]])
def test_day_without_a_vector_has_the_column_that_other_days_have(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"hidden_size": SIZE}))
    of_all = {"model_source": str(tmp_path / "model"), "on_empty": "publish"}
    for key, rows in (("2026-01-30", names), ("2026-01-31", ["a", "bb"]), ("2026-02-01", names)):
        run_with(job_in(tmp_path, rows, key, **of_all))
    files = f"{tmp_path}/out/**/*.parquet"
    expected = [[1.0] * 3, [2.0] * 3]
    assert duckdb.sql(f"select answer from '{files}' order by name").fetchall() == [(v,) for v in expected]
    assert pl.read_parquet(files).get_column("answer").to_list() == expected
    read = ds.dataset(f"{tmp_path}/out", partitioning="hive").to_table().column("answer")
    assert (read.type, read.to_pylist()) == (VECTOR, expected)


def test_model_that_was_replaced_half_way_is_noticed_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path, ["a", "bb", "ccc", "dddd"])
    calls = 0

    def embed_until_killed(batch: pa.Table) -> pa.Table:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KeyboardInterrupt
        return embed(batch)

    with pytest.raises(KeyboardInterrupt):
        run(job, InProcess(answer=embed_until_killed, batch=2))
    monkeypatch.setattr("tests.unit.processor.test_vectors_of_a_slice.SIZE", SIZE + 1)
    with pytest.raises(
        SliceError, match=r"column 'answer': fixed_size_list<.*The model, .* rerun.force=True"
    ):
        run_with(job)
    report = run_with(changed(job, force_rerun=True))
    assert report.counts.succeeded == 4
