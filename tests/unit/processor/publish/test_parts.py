"""Counters of what is published, from answers to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint
from airflow_provider_raydatallm.contract.result.counters import COUNTERS
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
from airflow_provider_raydatallm.processor.store.fragments import put_fragment
from tests.support.in_process import InProcess, answer_with, changed, job_of, run_in_process

#: What a row adds to each counter: another number to each, or one row.
OF_A_ROW = {c.name: i + 2 if c.type == "int" else 1 for i, c in enumerate(COUNTERS)}
OF_A_ROW |= {"uncounted": 0, "degenerate": 0}
REPORTED = [c for c in COUNTERS if c.source != "parser"]


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in" / "a.parquet")
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")


def run(job: SliceJob, **values: Any) -> dict[str, int | None]:
    """Counters of the report, with an engine that knows all of them."""
    reported = {c.name: OF_A_ROW[c.name] if c.type == "int" else True for c in REPORTED}
    answer = answer_with(**{"finish_reason": "length"} | reported | values)
    return counters(run_in_process(job, InProcess(batch=2, answer=answer)))


def counters(report: Report) -> dict[str, int | None]:
    return {c.name: getattr(getattr(report, c.section), c.report_field) for c in COUNTERS}


def expected(rows: int) -> dict[str, int | None]:
    return {name: rows * value for name, value in OF_A_ROW.items()}


def test_every_counter_is_summed_over_the_published_rows_also_those_of_a_version_before(
    job: SliceJob,
) -> None:
    assert run(job) == expected(rows=3)
    pq.write_table(pa.table({"name": ["d", "e"]}), f"{job.input_path}/b.parquet")
    assert run(changed(job, rerun__on_input_change="extend")) == expected(rows=5)


def test_counter_that_one_row_does_not_have_is_unknown_and_the_others_are_not(job: SliceJob) -> None:
    """Fragments of a provider that did not have the counter yet lack its column."""
    plan = make_plan(job)
    known = {f"__{name}": [value] for name, value in OF_A_ROW.items() if name != "asked_again"}
    row = {"__unit": pa.array([0], pa.int32()), "__offset": pa.array([1], pa.int64()), "answer": ["old"]}
    checkpoint = Checkpoint(Store(job.paths.metadata), answers_fingerprint(job))
    ids = [unit.id for unit in plan.units]
    put_fragment(checkpoint.store, checkpoint.folder, "rows", pa.table(row | known), ids, 1)
    assert run(job) == expected(rows=3) | {"asked_again": None}
    assert pq.read_table(job.slice_path, partitioning=None).column("answer").to_pylist() == ["a", "old", "c"]


def test_counter_that_the_engine_does_not_report_is_null(job: SliceJob) -> None:
    nothing = dict.fromkeys(["finish_reason", *(c.name for c in REPORTED)])
    assert run(job, **nothing) == dict.fromkeys(OF_A_ROW) | {"uncounted": 3}


def test_tokens_are_those_of_the_rows_that_are_known(job: SliceJob) -> None:
    """Of an endpoint that leaves a reply's usage out; the same in a version that takes the rows over."""
    answer = answer_with(input_tokens=7, output_tokens=2, saved_tokens=None)

    def leave_out(requests: pa.Table) -> pa.Table:
        answers = answer(requests)
        is_known = pc.not_equal(answers.column("text"), "b")
        for name in ("input_tokens", "output_tokens"):
            values = pc.if_else(is_known, answers.column(name), None)
            answers = answers.set_column(answers.column_names.index(name), name, values)
        return answers

    report = run_in_process(job, InProcess(batch=2, answer=leave_out))
    tokens = report.tokens
    assert (tokens.input, tokens.output, tokens.saved) == (14, 4, None)  # type: ignore[attr-defined]
    assert report.counts.uncounted == 1  # type: ignore[attr-defined]
    pq.write_table(pa.table({"name": ["d"]}), f"{job.input_path}/b.parquet")
    extended = changed(job, rerun__on_input_change="extend")
    report = run_in_process(extended, InProcess(batch=2, answer=leave_out))
    assert (report.tokens.input, report.counts.uncounted) == (21, 1)  # type: ignore[attr-defined]


def test_rows_that_failed_for_being_truncated_count_as_truncated(job: SliceJob) -> None:
    strict = changed(job, choices=["yes", "no"], quality__max_quarantine=1.0)
    assert run(strict, text="y")["truncated"] == 3
