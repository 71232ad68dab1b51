"""Slices of several labels with their probabilities, from plan to publish: retried, extended, empty, and read
by others as one table, whose list of labels grew."""

from __future__ import annotations

import math
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
from tests.support.in_process import InProcess, answer_with, changed, job_of
from tests.support.in_process import run_in_process as run


def job_in(folder: Path, names: list[str], key: str = "2026-01-31", **given: Any) -> SliceJob:
    source = folder / "in" / key
    source.mkdir(parents=True)
    pq.write_table(pa.table({"name": pa.array(names, pa.string())}), source / "a.parquet")
    several = {"engine": "vllm", "choices": ["x", "y"], "labels__multi": True, "labels__confidence": True}
    return job_of(
        slice_key=key, input_path=str(source), output_path=f"{folder}/out", quality__max_quarantine=1.0,
        **{**several, **given},
    )  # fmt: skip


def run_with(job: SliceJob, *probabilities: float, bad: str = "fail") -> Any:
    def answer(batch: pa.Table) -> pa.Table:
        answers = answer_with(numbers=list(probabilities))(batch)
        is_bad = [f'"{bad}"' in text for text in batch.column("__request").to_pylist()]
        numbers = [[math.nan] * len(probabilities) if no else list(probabilities) for no in is_bad]
        index = answers.schema.get_field_index("numbers")
        return answers.set_column(
            index, answers.schema.field(index), pa.array(numbers, pa.list_(pa.float32()))
        )

    return run(job, InProcess(answer=answer))


def published(job: SliceJob) -> list[list[tuple[str, float]]]:
    column = pq.read_table(job.slice_path, partitioning=None).column("answer_probability")
    return [[(label, round(share, 2)) for label, share in row] for row in column.to_pylist()]


def test_rows_keep_their_probabilities_when_others_are_answered_again_or_added(tmp_path: Path) -> None:
    job = job_in(tmp_path, ["a", "fail"], rerun__on_input_change="extend")
    run_with(job, 0.9, 0.1)
    pq.write_table(pa.table({"name": ["b"]}), tmp_path / "in" / job.slice_key / "b.parquet")
    assert run_with(job, 0.2, 0.8).counts.resumed == 2
    first, added = [("x", 0.9), ("y", 0.1)], [("x", 0.2), ("y", 0.8)]
    assert published(job) == [first, added]
    report = run_with(changed(job, rerun__retry_quarantined=True), 0.3, 0.7, bad="")
    assert (report.counts.succeeded, report.counts.resumed) == (3, 2)
    assert published(job) == [first, [("x", 0.3), ("y", 0.7)], added]


def test_days_of_other_labels_are_one_table(tmp_path: Path) -> None:
    run_with(job_in(tmp_path, ["a"], "2026-01-01"), 0.9, 0.1)
    run_with(job_in(tmp_path, ["b"], "2026-01-02", choices=["x", "y", "z"]), 0.2, 0.3, 0.8)
    run_with(job_in(tmp_path, [], "2026-01-03", source__on_empty="publish"))
    files, column = f"{tmp_path}/out/**/*.parquet", "answer_probability"
    query = f"select {column}['z'] > 0.5 from '{files}' order by name"
    assert duckdb.sql(query).fetchall() == [(None,), (True,)]
    assert pl.read_parquet(files).height == 2
    table = ds.dataset(tmp_path / "out", partitioning="hive").to_table()
    assert table.column(column).type == pa.map_(pa.string(), pa.float32())
    assert [len(row) for row in table.column(column).to_pylist()] == [2, 3]


def test_mean_probability_of_the_labels_is_a_figure_of_gates(tmp_path: Path) -> None:
    job = job_in(
        tmp_path, ["a", "b", "fail"], labels__multi=False,
        quality__gates=[{"of": "confidence", "min": 0.7, "then": "hold"}],
    )  # fmt: skip
    [unsure] = run_with(job, 0.4, 0.6).gates
    assert (unsure.verdict, round(unsure.value, 3)) == ("held", 0.6)
    [sure] = run_with(changed(job, prompt="Sure {name}"), 0.9, 0.1).gates
    assert (sure.verdict, round(sure.value, 3)) == ("passed", 0.9)
    # Of what was published, too.
    gates = [{"of": "confidence", "max": 0.1, "against": 1}]
    later = job_in(tmp_path, ["a"], key="2026-02-01", labels__multi=False, quality__gates=gates)
    with pytest.raises(SliceError, match=r"confidence against 1 slice\(s\) is 0\.3, above max 0\.1"):
        run_with(later, 0.6, 0.4)
