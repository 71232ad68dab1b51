"""Rows that fail for their own reasons stop no other row, are kept with their error, and can be retried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support import stub_engine
from tests.support.in_process import InProcess, answer_fixed, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import newest, shown

BAD = (3, 17, 18, 41)


def preprocess(row: dict[str, Any]) -> Any:
    if row["n"] == 50:
        raise KeyError("no such thing")
    return 7 if row["n"] == 51 else f"{row['name']}"


def postprocess(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 60:
        raise ZeroDivisionError("division by zero")
    return {"upper": row["answer"].upper()}


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    names = [f"fail {i}" if i in BAD else f"n{i}" for i in range(100)]
    table = pa.table({"name": names, "n": pa.array(range(100), pa.uint8())})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=15)
    return job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")


def published(job: SliceJob) -> pa.Table:
    return pq.read_table(job.slice_path, partitioning=None)


def quarantined(job: SliceJob) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(job.paths.quarantine, partitioning=None).to_pylist()
    assert sum(f.rows for f in newest(job).quarantine) == len(rows)
    return rows


def test_failed_rows_stand_beside_the_output_with_their_error_and_their_input(job: SliceJob) -> None:
    report = run(job)
    assert (report.counts.planned, report.counts.succeeded, report.counts.quarantined) == (100, 96, 4)
    table = published(job)
    assert table.column("n").to_pylist() == [i for i in range(100) if i not in BAD]
    assert table.column("answer").to_pylist() == table.column("name").to_pylist()
    rows = quarantined(job)
    assert [r["n"] for r in rows] == list(BAD)
    assert [r["__row"] for r in rows] == [i + 1 for i in BAD]
    first = rows[0]
    assert first["name"] == "fail 3"
    assert first["__file"].endswith("in.parquet")
    assert (first["__error_type"], first["__error"]) == ("ValueError", "ValueError: it begins with fail")
    # Readers of the table see the succeeded rows only.
    assert pq.read_table(job.slice_path, partitioning=None).num_rows == 96


def test_every_stage_quarantines_its_own(job: SliceJob) -> None:
    made = changed(
        job, prompt=None, preprocess=f"{__name__}:preprocess", postprocess=f"{__name__}:postprocess"
    )
    report = run(made)
    assert report.counts.succeeded == 100 - 4 - 2 - 1
    why = {r["n"]: (r["__error_type"], r["__error"]) for r in quarantined(made)}
    first = preprocess.__code__.co_firstlineno
    assert why[50] == ("KeyError", f"preprocess (test_quarantine.py:{first + 2}): 'no such thing'")
    assert why[51][0] == "InvalidRequest"
    assert "preprocess must return a prompt" in why[51][1]
    of_preprocess, first = first, postprocess.__code__.co_firstlineno
    assert report.quarantine_reasons == {
        "ValueError": 4,
        "InvalidRequest": 1,
        f"KeyError in preprocess (test_quarantine.py:{of_preprocess + 2})": 1,
        f"ZeroDivisionError in postprocess (test_quarantine.py:{first + 2})": 1,
    }
    assert why[60] == (
        "ZeroDivisionError", f"postprocess (test_quarantine.py:{first + 2}): division by zero",
    )  # fmt: skip
    assert set(why) == {*BAD, 50, 51, 60}
    assert published(made).column("upper").to_pylist()[0] == "N0"


def test_failure_says_which_function_of_the_user_raised(job: SliceJob) -> None:
    made = changed(job, prompt=None, preprocess=f"{__name__}:preprocess", quality__max_quarantine=0)
    with pytest.raises(SliceError, match=r"1 KeyError in preprocess") as refused:
        run(made)
    failure = refused.value.failure
    assert failure.advice[0].startswith("Correct preprocess, and set rerun.retry_quarantined")
    assert failure.code == "too_many_failed"


def test_answer_that_breaks_its_shape_is_quarantined_with_its_text(job: SliceJob) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    shaped = changed(job, output_schema=schema, quality__max_quarantine=1.0)
    report = run(shaped)
    assert (report.counts.succeeded, report.counts.quarantined, report.counts.invalid_output) == (0, 100, 96)
    assert published(shaped).schema.field("answer").type == pa.struct([("a", pa.int64())])
    [row] = [r for r in quarantined(shaped) if r["n"] == 0]
    assert (row["__error_type"], row["__error"]) == (
        "InvalidOutput", "the answer is not valid JSON: Expecting value: line 1 column 1 (char 0): 'n0'",
    )  # fmt: skip


@pytest.mark.slow
def test_too_many_failures_publish_nothing_keep_the_rows_and_say_why(job: SliceJob) -> None:
    strict = changed(job, quality__max_quarantine=0.01)
    with pytest.raises(
        SliceError, match=r"quality.max_quarantine 0.01 \(4 ValueError\): row 4 of .*in\.parquet"
    ):
        run(strict)
    assert shown(job) == set()
    cluster = InProcess()
    report = run(changed(job, quality__max_quarantine=0.04), cluster)
    assert report.counts.quarantined == 4
    assert cluster.answered == 0  # it had stopped at the end of the first pass: all was answered
    with pytest.raises(SliceError, match=r"quality.max_quarantine"):
        run(changed(job, slice_key="other", quality__max_quarantine=0.0))


def test_share_that_is_allowed_is_not_too_much_by_a_rounding(job: SliceJob) -> None:
    names = ["fail"] * 29 + ["a"] * 71
    pq.write_table(pa.table({"n": range(100), "name": names}), job.input_path)
    assert run(changed(job, quality__max_quarantine=0.29)).counts.quarantined == 29  # 0.29 * 100 < 29


def refuse_half(row: dict[str, Any]) -> str:
    if row["n"] < 50:
        raise ValueError("no")
    return str(row["name"])


def test_slice_with_too_many_failures_is_not_answered_to_its_end(job: SliceJob) -> None:
    cluster = InProcess()
    asked = changed(job, preprocess="tests.unit.processor.publish.test_quarantine:refuse_half", prompt=None)
    with pytest.raises(SliceError, match=r"quality.max_quarantine") as raised:
        run(asked, cluster)
    line = f"at test_quarantine.py:{refuse_half.__code__.co_firstlineno + 2}"
    assert raised.value.failure.without_row_texts().frames == (line,)
    assert cluster.answered == 0  # the 50 that fail come first
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"quality.max_quarantine"):
        run(changed(asked, slice_key="other", quality__max_attempts=2), cluster)
    assert cluster.answered == 50  # each row has another try, which may succeed


def test_rows_are_tried_as_often_as_asked(job: SliceJob) -> None:
    cluster = InProcess()
    report = run(changed(job, quality__max_attempts=3), cluster)
    assert report.counts.quarantined == 4
    assert cluster.answered == 100 + 4 + 4


def test_row_that_fails_once_is_answered_by_its_next_attempt(job: SliceJob) -> None:
    cluster = InProcess()
    cluster.answer = lambda b: (stub_engine.answer if cluster.answered <= 100 else answer_fixed)(b)
    report = run(changed(job, quality__max_attempts=2), cluster)
    assert (report.counts.succeeded, report.counts.quarantined) == (100, 0)
    assert published(job).column("answer").to_pylist()[3] == "fine 3"
    assert not Path(job.paths.quarantine).exists()


@pytest.mark.slow
def test_retry_runs_the_quarantined_rows_only(job: SliceJob) -> None:
    first = run(job)
    before = published(job).to_pylist()
    requests: list[str] = []

    def answer(batch: pa.Table) -> pa.Table:
        requests.extend(batch.column("__request").to_pylist())
        return answer_fixed(batch, "fail 1", "fine 1")

    retry = changed(job, rerun__retry_quarantined=True)
    cluster = InProcess(answer=answer)
    report = run(retry, cluster)
    assert cluster.answered == len(requests) == 4
    assert (report.counts.planned, report.counts.succeeded, report.counts.quarantined) == (100, 98, 2)
    assert report.counts.resumed == 96
    assert first.tokens.input is not None
    assert report.tokens.input == first.tokens.input + 2 * 7
    after = published(job).to_pylist()
    assert [r for r in after if r["n"] not in (17, 18)] == before
    assert [r["answer"] for r in after if r["n"] in (17, 18)] == ["fine 17", "fine 18"]
    assert [r["n"] for r in quarantined(job)] == [3, 41]
    assert run(job).outcome == "unchanged"
    # A third version builds on the second.
    assert run(retry).counts.succeeded == 98


def test_failed_rows_of_a_slice_that_was_not_published_are_tried_again_when_asked(job: SliceJob) -> None:
    strict = changed(job, quality__max_quarantine=0.01)
    with pytest.raises(SliceError, match=r"rerun.retry_quarantined=True"):
        run(strict)
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"rerun.retry_quarantined=True"):
        run(strict, cluster)
    assert cluster.answered == 0
    report = run(changed(job, rerun__retry_quarantined=True), cluster)
    assert cluster.answered == 4
    assert (report.counts.succeeded, report.counts.quarantined) == (96, 4)


def test_retry_of_a_slice_without_quarantine_does_nothing(job: SliceJob, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "fine.parquet")
    fine = changed(job, input_path=f"{tmp_path}/fine.parquet", rerun__retry_quarantined=True)
    assert run(fine).outcome == "published"
    assert run(fine).outcome == "unchanged"
