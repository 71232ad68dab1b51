"""What a version takes over from the one before it: answered rows and rows in quarantine alike, unpaid."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import answer_table
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import answers, checkpoint_folders, newest

#: What becomes of a row of this name.
KINDS = {
    "raises": "KeyError", "invalid": "InvalidOutput", "cut": "TruncatedAnswer", "fail": "ValueError",
}  # fmt: skip
COLUMNS = ["__file", "__row", "__unit", "__offset", "__error_type", "__error", "name"]


def ask(row: dict[str, Any]) -> str:
    if row["name"] == "raises":
        raise KeyError("no such thing")
    return str(row["name"])


def answer(batch: pa.Table, heals: str = "") -> pa.Table:
    """:param heals: name of rows whose answers are valid nevertheless."""
    names = [json.loads(r)["messages"][0]["content"] for r in batch.column("__request").to_pylist()]
    names = ["x" if name == heals else name for name in names]
    failed = [name == "fail" or None for name in names]
    texts = {"cut": '{"a"', "invalid": '{"a": "no number"}', "fail": None}
    n = len(names)
    return answer_table(
        batch, text=[texts.get(name, '{"a": 1}') for name in names],
        finish_reason=["length" if name == "cut" else "stop" for name in names],
        input_tokens=[5] * n, output_tokens=[2] * n, cached_tokens=[0] * n, saved_tokens=[0] * n,
        engine_seconds=[0.1] * n, finished_at=[time.time()] * n,
        error=[f and "ValueError: refused" for f in failed], error_type=[f and "ValueError" for f in failed],
    )  # fmt: skip


def cluster_of(**given: Any) -> InProcess:
    return InProcess(answer=partial(answer, **given), batch=1)


def add(job: SliceJob, name: str, names: list[str]) -> None:
    pq.write_table(pa.table({"name": names}), Path(job.input_path, name), row_group_size=7)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", preprocess=f"{__name__}:ask",
        output_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        quality__max_quarantine=1.0, rerun__on_input_change="extend",
    )  # fmt: skip
    add(job, "b.parquet", ["x", *KINDS, *["x"] * 5] * 3)
    return job


def quarantine(job: SliceJob) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(job.paths.quarantine, partitioning=None).to_pylist()
    assert list(rows[0]) == COLUMNS
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("policy", [{}, {"quality__max_attempts": 3}, {"quality__repair": 2}], ids=str)
def test_extension_asks_no_row_in_quarantine_again(job: SliceJob, policy: dict[str, int]) -> None:
    job = changed(job, **policy)
    first = run(job, cluster_of())
    before = quarantine(job)
    assert {row["name"]: row["__error_type"] for row in before} == KINDS
    add(job, "a.parquet", ["x", "cut"])
    add(job, "c.parquet", ["x", "x"])
    cluster = cluster_of()
    report = run(job, cluster)
    assert cluster.answered == 3 + policy.get("quality__max_attempts", 1)  # of the new rows
    after = quarantine(job)
    assert [row for row in after if not row["__file"].endswith("a.parquet")] == before
    assert len(after) == 13
    assert answers(job) == [{"a": 1}] * 21
    counts, old = report.counts, first.counts
    assert (counts.planned, counts.succeeded, counts.quarantined) == (34, 21, 13)
    assert (counts.invalid_output, counts.truncated) == (7, 4)
    assert (old.invalid_output, old.truncated) == (6, 3)
    assert first.tokens.input is not None
    assert report.tokens.input == first.tokens.input + 5 * cluster.answered
    assert report.quarantine_reasons == {
        "TruncatedAnswer": 4,
        "InvalidOutput": 3,
        f"KeyError in preprocess (test_carry_over.py:{ask.__code__.co_firstlineno + 2})": 3,
        "ValueError": 3,
    }
    assert run(job).outcome == "unchanged"
    assert checkpoint_folders(job) == []


@pytest.mark.slow
def test_version_after_version_takes_over_the_same_rows(job: SliceJob) -> None:
    run(job, cluster_of())
    before = quarantine(job)
    for name in ("c", "d"):
        add(job, f"{name}.parquet", ["x"])
        cluster = cluster_of()
        report = run(job, cluster)
        assert (cluster.answered, quarantine(job)) == (1, before)
        assert (report.counts.truncated, report.counts.quarantined) == (3, 12)
    assert newest(job).number == 3


RETRY = {"rerun__retry_quarantined": True}


@pytest.mark.slow
def test_extension_asks_rows_in_quarantine_again_when_asked_to(job: SliceJob) -> None:
    first = run(job, cluster_of())
    add(job, "c.parquet", ["x"])
    cluster = cluster_of(heals="cut")
    report = run(changed(job, **RETRY), cluster)
    assert cluster.answered == 9 + 1
    assert {row["name"] for row in quarantine(job)} == {"raises", "invalid", "fail"}
    assert (report.counts.succeeded, report.counts.quarantined) == (18 + 3 + 1, 9)
    assert (report.counts.truncated, report.counts.invalid_output) == (0, 3)
    assert first.tokens.input is not None
    assert report.tokens.input == first.tokens.input + 5 * 10


class Killed(Exception): ...


def dies_at(rows: int) -> InProcess:
    def die(batch: pa.Table) -> None:
        if cluster.answered == rows:
            raise Killed

    cluster = cluster_of()
    cluster.before_batch = die
    return cluster


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then", "asked"),
    [({}, {}, 4 + 1), ({}, RETRY, 4 + 10), (RETRY, {}, 4 + 1), (RETRY, RETRY, 4 + 10)],
)
def test_extension_that_died_goes_on_with_what_it_took_over(
    job: SliceJob, before: dict[str, Any], then: dict[str, Any], asked: int
) -> None:
    run(job, cluster_of())
    in_quarantine = quarantine(job)
    add(job, "a.parquet", ["x"] * 5)
    first = dies_at(4)
    with pytest.raises(Killed):
        run(changed(job, **before), first)
    second = cluster_of()
    run(changed(job, **then), second)
    assert first.answered + second.answered == asked
    assert quarantine(job) == in_quarantine
    assert answers(job) == [{"a": 1}] * 23


@pytest.mark.parametrize("limit", ["max_quarantine", "max_invalid"])
def test_rows_in_quarantine_that_are_taken_over_count_for_the_limits(job: SliceJob, limit: str) -> None:
    run(job, cluster_of())
    add(job, "c.parquet", ["x"])
    cluster = cluster_of()
    with pytest.raises(SliceError, match=f"quality.{limit} 0.1 .*: row "):
        run(changed(job, **{f"quality__{limit}": 0.1}), cluster)
    assert (cluster.answered, newest(job).number) == (0, 1)


@pytest.mark.slow
def test_retry_that_fails_in_another_way_says_how(job: SliceJob) -> None:
    """The failure of the version before is no attempt of this one."""
    run(job, cluster_of())

    def refuse(batch: pa.Table) -> pa.Table:
        failed = ["ValueError: gone"] * batch.num_rows
        return answer_table(
            batch,
            text=[None] * batch.num_rows,
            error=failed,
            error_type=["ValueError"] * batch.num_rows,
            finished_at=[time.time()] * batch.num_rows,
            engine_seconds=[0.0] * batch.num_rows,
        )

    run(changed(job, **RETRY), InProcess(answer=refuse))
    assert {row["__error_type"] for row in quarantine(job)} == {"ValueError", "KeyError"}


@pytest.mark.slow
def test_quarantine_that_somebody_replaced_is_not_taken_over(job: SliceJob) -> None:
    run(job, cluster_of())
    [path] = Path(job.paths.quarantine).glob("*.parquet")
    size, table = path.stat().st_size, pq.read_table(path, partitioning=None)
    units = pa.array(["0" * 16] * table.num_rows)
    table = table.set_column(table.schema.names.index("__unit"), "__unit", units)
    for pad in range(1000):  # of the same size, or the slice is built again
        with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({"pad": "x" * pad})
        if path.stat().st_size == size:
            break
    add(job, "c.parquet", ["x"])
    with pytest.raises(SliceError, match="published rows cannot be identified"):
        run(job, cluster_of())
