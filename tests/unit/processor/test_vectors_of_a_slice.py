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
from airflow_provider_raydatallm.processor.publish.restore import restore_version
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
        quality__max_quarantine=1.0, **given,
    )  # fmt: skip


def run_with(job: SliceJob, **given: Any) -> Any:
    return run(job, InProcess(answer=lambda batch: embed(batch, **given), batch=2))


def test_rows_in_quarantine_are_answered_again_and_the_others_keep_their_vectors(tmp_path: Path) -> None:
    job = job_in(tmp_path, ["a", "fail", "ccc"])
    run_with(job)
    report = run_with(changed(job, rerun__retry_quarantined=True), bad="")
    assert (report.counts.succeeded, report.counts.resumed) == (3, 2)
    published = pq.read_table(job.slice_path, partitioning=None).column("answer")
    assert (published.type, published.to_pylist()) == (VECTOR, [[1.0] * 3, [4.0] * 3, [3.0] * 3])


def test_slice_is_extended_by_new_files(tmp_path: Path) -> None:
    job = job_in(tmp_path, ["a"])
    run_with(job)
    pq.write_table(pa.table({"name": ["bb"]}), tmp_path / "in" / job.slice_key / "b.parquet")
    report = run_with(changed(job, rerun__on_input_change="extend"))
    assert (report.counts.succeeded, report.counts.resumed) == (2, 1)
    published = pq.read_table(job.slice_path, partitioning=None).column("answer")
    assert (published.type, published.to_pylist()) == (VECTOR, [[1.0] * 3, [2.0] * 3])


def read_as_one_table(table: Path) -> None:
    """Readers of others find the vectors of "a" and "bb"."""
    files, expected = f"{table}/**/*.parquet", [[1.0] * SIZE, [2.0] * SIZE]
    assert duckdb.sql(f"select answer from '{files}' order by name").fetchall() == [(v,) for v in expected]
    assert pl.read_parquet(files).get_column("answer").to_list() == expected
    read = ds.dataset(table, partitioning="hive").to_table().column("answer")
    assert (read.type, read.to_pylist()) == (VECTOR, expected)


def model_folder(folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": SIZE}))
    return str(folder)


@pytest.mark.parametrize("names", [[], ["fail", "fail"]])
def test_day_without_a_vector_has_the_column_that_other_days_have(tmp_path: Path, names: list[str]) -> None:
    of_all = {"model_source": model_folder(tmp_path / "model"), "source__on_empty": "publish"}
    for key, rows in (("2026-01-30", names), ("2026-01-31", ["a", "bb"]), ("2026-02-01", names)):
        run_with(job_in(tmp_path, rows, key, **of_all))
    read_as_one_table(tmp_path / "out")


@pytest.mark.parametrize("names", [[], ["fail", "fail"]])
def test_day_without_a_vector_of_a_hub_model_has_the_column_of_earlier_days(
    tmp_path: Path, names: list[str]
) -> None:
    of_all = {"model_source": "nobody/knows", "source__on_empty": "publish"}
    for key, rows in (("2026-01-31", ["a", "bb"]), ("2026-01-30", names), ("2026-02-01", names)):
        run_with(job_in(tmp_path, rows, key, **of_all))
    read_as_one_table(tmp_path / "out")


def test_first_day_without_a_vector_is_told_and_right_once_it_is_run_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_all = {"model_source": "nobody/knows", "source__on_empty": "publish"}
    first = job_in(tmp_path, [], "2026-01-30", **of_all)
    run_with(first)
    assert "no slice of the table says how long its vectors are" in caplog.text
    run_with(job_in(tmp_path, ["a", "bb"], **of_all))
    run_with(changed(first, rerun__force=True))
    read_as_one_table(tmp_path / "out")


def test_other_type_of_vectors_is_refused_before_a_row_is_paid_for_unless_all_days_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [job_in(tmp_path, ["a"], "2026-01-30"), job_in(tmp_path, ["bb"])]
    run_with(days[0])
    cluster = InProcess(answer=embed)
    with pytest.raises(SliceError, match=r"float>\[3\] in the table \(slice '2026-01-30'\).*embedding.dtype"):
        run(changed(days[1], embedding__dtype="float16"), cluster)
    assert cluster.answered == 0
    of_all = {
        "embedding__dtype": "float16",
        "publish__on_schema_change": "accept",
        "rerun__on_config_change": "recompute",
    }
    for job in days:
        run_with(changed(job, **of_all))
    shown = pl.read_parquet(f"{tmp_path}/out/**/*.parquet").get_column("answer")
    assert (shown.dtype, shown.to_list()) == (pl.Array(pl.Float16, SIZE), [[1.0] * SIZE, [2.0] * SIZE])
    with pytest.raises(SliceError, match=r"halffloat>\[3\] in the table"):
        restore_version(changed(days[0], embedding__dtype="float16").address, 1)
    monkeypatch.setattr("tests.unit.processor.test_vectors_of_a_slice.SIZE", SIZE + 1)
    with pytest.raises(SliceError, match=r"\[4\], and .*\[3\] in the table.*embedding.dimensions"):
        run_with(job_in(tmp_path, ["ccc"], "2026-02-01", embedding__dtype="float16"))


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
    cluster = InProcess(answer=embed, batch=1)
    with pytest.raises(SliceError, match=r"had 3 numbers .* and 4 now.*rerun.force=True"):
        run(job, cluster)
    assert cluster.answered == 1  # no other row is paid for, and none of the new size is kept
    monkeypatch.undo()
    assert run_with(job).counts.resumed == 2
    monkeypatch.setattr("tests.unit.processor.test_vectors_of_a_slice.SIZE", SIZE + 1)
    report = run_with(changed(job, rerun__force=True, publish__on_schema_change="accept"))
    assert report.counts.succeeded == 4


def test_vectors_that_a_slice_is_extended_by_are_as_long_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path, ["a"])
    run_with(job)
    pq.write_table(pa.table({"name": ["bb", "cc"]}), tmp_path / "in" / job.slice_key / "b.parquet")
    monkeypatch.setattr("tests.unit.processor.test_vectors_of_a_slice.SIZE", SIZE + 1)
    cluster = InProcess(answer=embed, batch=1)
    with pytest.raises(SliceError, match=r"had 3 numbers .* and 4 now"):
        run(changed(job, rerun__on_input_change="extend"), cluster)
    assert cluster.answered == 1
