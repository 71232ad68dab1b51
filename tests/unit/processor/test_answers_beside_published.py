"""Answers that were there when a version was published whose rows are taken over: those of a run that a gate
stopped, or that a person rejected, before another one was published instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    discard_for_people,
    publish_approved,
)
from airflow_provider_raydatallm.processor.run_plan import plan_run
from tests.support.counting_model import CountingModel
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run

N = 60
#: What publishes the version's rows in the next one.
EXTEND = {"rerun__on_input_change": "extend"}
REPUBLISH = {
    "rerun__on_config_change": "recompute", "publish__on_schema_change": "accept",
    "publish__details": ["finish_reason"],
}  # fmt: skip
STOPS = {"quality__gates": [{"of": "truncated", "max": 0.1}]}


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": range(N)}), tmp_path / "in" / "a.parquet", row_group_size=7)
    return job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{n}", quality__max_quarantine=0.5
    )


def add(job: SliceJob, *rows: int) -> None:
    pq.write_table(pa.table({"n": rows}), Path(job.input_path, f"{rows[0]}.parquet"))


def stopped(job: SliceJob, cluster: InProcess) -> None:
    with pytest.raises(SliceError, match="did not pass"):
        run(changed(job, **STOPS), cluster)


def held(job: SliceJob, cluster: InProcess) -> str:
    report = run(changed(job, quality__gates=[{"of": "truncated", "max": 0.1, "then": "hold"}]), cluster)
    assert report.staged_version is not None
    return report.staged_version


def rejected(job: SliceJob, cluster: InProcess) -> None:
    discard_for_people(job.address, held(job, cluster))


def published(job: SliceJob) -> dict[int, str]:
    rows = pq.read_table(job.slice_path, partitioning=None).to_pylist()
    return {row["n"]: row["answer"] for row in rows}


@pytest.mark.parametrize("then", [EXTEND, REPUBLISH], ids=["extend", "republish"])
@pytest.mark.parametrize("before", [stopped, rejected])
def test_answers_that_were_not_published_are_in_no_later_version_of_the_slice(
    job: SliceJob, before: Callable[[SliceJob, InProcess], None], then: dict[str, Any]
) -> None:
    model = CountingModel()
    model.fails = lambda n: False
    cluster = InProcess(answer=model)
    before(job, cluster)
    model.fails, model.cuts = (lambda n: n % 5 == 0), (lambda n: False)
    forced = run(changed(job, rerun__force=True), cluster)
    assert (forced.counts.quarantined, forced.counts.truncated) == (12, 0)
    if then is EXTEND:
        add(job, 101, 102)
    asked = cluster.answered
    new = 2 * (then is EXTEND)
    planned = plan_run(changed(job, **then), None)
    assert (planned.missing_rows, planned.earlier.answered, planned.earlier.quarantined) == (new, 48, 12)
    report = run(changed(job, **then), cluster)
    assert (report.counts.quarantined, report.counts.truncated) == (12, 0)
    assert cluster.answered - asked == new
    assert published(job) == {
        **{n: f"{n}, asked 2" for n in range(N) if n % 5}, **{n: f"{n}, asked 1" for n in (101, 102)[:new]}
    }  # fmt: skip


@pytest.mark.parametrize("then", [EXTEND, REPUBLISH], ids=["extend", "republish"])
@pytest.mark.parametrize("before", [stopped, rejected, held])
def test_answers_from_before_all_rows_were_asked_again_come_back_in_no_version(
    job: SliceJob, before: Callable[[SliceJob, InProcess], object], then: dict[str, Any]
) -> None:
    """Nor once a version was built on the forced one, whose own plan is then removed."""
    model = CountingModel()
    model.fails = lambda n: False
    cluster = InProcess(answer=model)
    before(job, cluster)
    model.cuts = lambda n: False
    run(changed(job, rerun__force=True), cluster)
    run(changed(job, **REPUBLISH), cluster)
    if then is EXTEND:
        add(job, 101, 102)
        run(
            changed(job, **EXTEND, rerun__on_config_change="recompute", publish__on_schema_change="accept"),
            cluster,
        )
    asked = cluster.answered
    add(job, 201)
    report = run(
        changed(job, rerun__on_input_change="recompute", **{**REPUBLISH, "publish__details": []}), cluster
    )
    assert report.counts.truncated == 0
    assert all(answer != f"{n}, asked 1" for n, answer in published(job).items() if n < N)
    kept = before is held  # rows of a checkpoint that somebody holds count, if they were answered since
    assert cluster.answered - asked == N + 1 + 2 * (then is EXTEND and not kept)


def test_published_answer_stays_whatever_a_later_run_answered_that_was_stopped(job: SliceJob) -> None:
    model = CountingModel(lambda n: False)
    cluster = InProcess(answer=model)
    run(job, cluster)
    before = published(job)
    add(job, 101, 102)
    asked = cluster.answered

    def die(batch: pa.Table) -> None:
        raise KeyboardInterrupt

    cluster.before_batch = die
    with pytest.raises(KeyboardInterrupt):
        run(changed(job, **EXTEND), cluster)
    cluster.before_batch = lambda batch: None
    model.cuts = lambda n: True
    with pytest.raises(SliceError, match="did not pass"):
        run(changed(job, rerun__on_input_change="recompute", **STOPS), cluster)
    assert cluster.answered - asked == N + 2
    assert run(changed(job, **EXTEND), cluster).outcome == "published"
    assert published(job) == {**before, 101: "101, asked 1", 102: "102, asked 1"}
    assert cluster.answered - asked == N + 2  # rows of the new file count


def test_rows_of_another_file_count_that_a_stopped_run_wrote_beside_those_of_the_version(
    job: SliceJob, tmp_path: Path
) -> None:
    model = CountingModel()
    cluster = InProcess(answer=model, batch=4, flush_every=100)
    add(job, 101, 102)
    more = Path(job.input_path, "101.parquet")
    job = changed(job, quality__max_quarantine=0.5, **EXTEND)
    stopped(job, cluster)
    more.rename(tmp_path / "away")
    model.cuts = lambda n: False
    run(changed(job, rerun__force=True), cluster)
    asked = cluster.answered
    (tmp_path / "away").rename(more)
    report = run(job, cluster)
    assert (report.outcome, cluster.answered - asked, report.counts.truncated) == ("published", 0, 0)
    assert published(job) == {
        **{n: f"{n}, asked 2" for n in range(N) if n % 20 != 7}, 101: "101, asked 1", 102: "102, asked 1"
    }  # fmt: skip


def test_rows_of_another_file_that_were_there_before_count(job: SliceJob) -> None:
    """A person approves a version while a run over more files is half finished."""
    model = CountingModel(lambda n: False)
    cluster = InProcess(answer=model)
    waits = changed(job, quality__gates=[{"of": "rows", "then": "hold"}])
    name = run(waits, cluster).staged_version
    assert name is not None
    add(job, 101, 102)

    def die(batch: pa.Table) -> None:
        if cluster.answered == N + 1:
            raise KeyboardInterrupt

    cluster.batch, cluster.before_batch = 1, die
    with pytest.raises(KeyboardInterrupt):
        run(changed(job, **EXTEND), cluster)
    publish_approved(waits, name)
    cluster.before_batch = lambda batch: None
    assert run(changed(job, **EXTEND), cluster).outcome == "published"
    assert cluster.answered == N + 2


@pytest.mark.parametrize("then", [EXTEND, REPUBLISH], ids=["extend", "republish"])
def test_golden_rows_of_answers_that_were_not_published_count_for_nothing(
    job: SliceJob, tmp_path: Path, then: dict[str, Any]
) -> None:
    """What the model says now, or said of what is published anew."""
    golden = range(500, 510)
    pq.write_table(
        pa.table({"n": golden, "answer": [f"{n}, asked 1" for n in golden]}), tmp_path / "golden.parquet"
    )
    job = changed(job, quality__golden={"path": f"{tmp_path}/golden.parquet"}, quality__repeat=N)
    model = CountingModel()
    model.fails = lambda n: False
    cluster = InProcess(answer=model)
    stopped(job, cluster)
    model.cuts = lambda n: False
    forced = run(changed(job, rerun__force=True), cluster)
    assert forced.golden is not None
    assert forced.golden.accuracy == 0
    if then is EXTEND:
        add(job, 101, 102)
    asked = cluster.answered
    report = run(changed(job, **then), cluster)
    assert report.golden is not None
    assert report.golden.accuracy == 0
    assert cluster.answered - asked == (2 + len(golden) + N if then is EXTEND else 0)


def test_tokens_and_attempts_of_answers_that_were_not_published_count_for_no_later_version(
    job: SliceJob,
) -> None:
    model = CountingModel()
    cluster = InProcess(answer=model)
    tries = changed(job, quality__max_attempts=2)
    stopped(tries, cluster)
    model.cuts = lambda n: False
    model.fails = lambda n: n == 7
    forced = run(changed(tries, rerun__force=True), cluster)
    add(job, 101, 102)
    report = run(changed(tries, **EXTEND), cluster)
    assert (forced.tokens.output, forced.counts.quarantined) == (3 * (N + 1), 1)  # of row 7, both
    assert (report.tokens.output, report.counts.quarantined) == (3 * (N + 3), 1)
