"""Columns that say more of each row than its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint, fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.publish import Detail
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import answer_table
from tests.support.in_process import InProcess, answer_with, changed, job_of, run_in_process

ALL = get_args(Detail)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"]}), tmp_path / "in" / "a.parquet")
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")


def published(job: SliceJob) -> pa.Table:
    return pq.read_table(job.slice_path, partitioning=None)


def test_every_detail_is_a_column_in_the_order_that_is_asked_for(job: SliceJob) -> None:
    reported = {
        "finish_reason": "length", "input_tokens": 7, "output_tokens": 2, "cached_tokens": 3,
        "reasoning_tokens": 1, "engine_seconds": 0.5, "shortened": True, "deduplicated": False,
        "cached": True,
    }  # fmt: skip
    names = [*reversed(ALL), "seconds"]
    run_in_process(changed(job, publish__details=names), InProcess(answer=answer_with(**reported)))
    table = published(job)
    assert table.column_names == ["name", "answer", *(f"answer_{name}" for name in reversed(ALL))]
    assert table.slice(0, 1).to_pylist()[0] == {
        "name": "a", "answer": "a", "answer_finish_reason": "length", "answer_input_tokens": 7,
        "answer_output_tokens": 2, "answer_cached_tokens": 3, "answer_reasoning_tokens": 1,
        "answer_seconds": 0.5, "answer_attempts": 1, "answer_repaired": False, "answer_truncated": True,
        "answer_degenerate": False, "answer_shortened": True, "answer_deduplicated": False,
        "answer_cached": True,
    }  # fmt: skip


def test_files_name_model_and_fingerprint_where_details_are_asked_for(job: SliceJob) -> None:
    run_in_process(job)
    [file] = Path(job.slice_path).glob("*.parquet")
    assert b"ray_llm.model" not in (pq.read_schema(file).metadata or {})
    asks = changed(job, publish__details=["seconds"], rerun__on_config_change="recompute")
    run_in_process(asks)
    [file] = Path(job.slice_path).glob("*.parquet")
    metadata = pq.read_schema(file).metadata
    assert metadata[b"ray_llm.model"].decode() == job.model_source
    assert metadata[b"ray_llm.fingerprint"].decode() == fingerprint(asks)


def test_what_an_engine_does_not_report_is_null(job: SliceJob) -> None:
    nothing = dict.fromkeys(["finish_reason", "input_tokens", "engine_seconds", "shortened"])
    details = ["finish_reason", "input_tokens", "seconds", "shortened"]
    run_in_process(changed(job, publish__details=details), InProcess(answer=answer_with(**nothing)))
    for name in details:
        assert published(job).column(f"answer_{name}").to_pylist() == [None] * 3


def test_attempts_count_those_that_failed_and_repaired_is_an_answer_after_an_invalid_one(
    job: SliceJob,
) -> None:
    asked: list[str] = []

    def answer(batch: pa.Table) -> pa.Table:
        names = [json.loads(r)["messages"][0]["content"] for r in batch.column("__request").to_pylist()]
        asked.extend(names)
        texts, errors = [], []
        for name in names:
            is_first = asked.count(name) == 1
            texts.append(
                None if name == "b" and is_first else "no" if name == "c" and is_first else '{"a": 1}'
            )
            errors.append("refused" if texts[-1] is None else None)
        n = len(names)
        return answer_table(
            batch, text=texts, finish_reason=["stop"] * n, input_tokens=[5] * n, output_tokens=[2] * n,
            cached_tokens=[0] * n, saved_tokens=[0] * n, engine_seconds=[0.1] * n, finished_at=[1e9] * n,
            error=errors, error_type=[e and "ValueError" for e in errors],
        )  # fmt: skip

    asks = changed(job, output_schema=SCHEMA, prompt="{name}", quality__max_attempts=2)
    asks = changed(asks, publish__details=["attempts", "repaired"])
    run_in_process(asks, InProcess(answer=answer, batch=1))
    table = published(job)
    assert table.column("answer_attempts").to_pylist() == [1, 2, 2]
    assert table.column("answer_repaired").to_pylist() == [False, False, True]


def test_other_details_are_another_version_of_the_same_answers(job: SliceJob) -> None:
    asks = changed(job, publish__details=["seconds"])
    assert answers_fingerprint(asks) == answers_fingerprint(job)
    assert fingerprint(asks) != fingerprint(job)


def test_rows_that_are_taken_over_keep_what_their_version_published_of_them(job: SliceJob) -> None:
    engine = answer_with(input_tokens=7, output_tokens=2)
    run_in_process(changed(job, publish__details=["input_tokens"]), InProcess(answer=engine))
    pq.write_table(pa.table({"name": ["d"]}), f"{job.input_path}/b.parquet")
    rerun: dict[str, Any] = {"rerun__on_input_change": "extend", "rerun__on_config_change": "recompute"}
    asks = changed(
        job, publish__details=["input_tokens", "output_tokens"], publish__on_schema_change="accept"
    )
    cluster = InProcess(answer=engine)
    report = run_in_process(changed(asks, **rerun), cluster)
    assert cluster.answered == 1
    assert report.tokens.input == 4 * 7
    table = published(job)
    assert table.column("answer_input_tokens").to_pylist() == [7] * 4
    assert table.column("answer_output_tokens").to_pylist() == [None, None, None, 2]
    # The same rows again, without a word of them.
    assert (
        run_in_process(changed(job, publish__on_schema_change="accept", **rerun), cluster).counts.succeeded
        == 4
    )
    assert cluster.answered == 1
    assert published(job).column_names == ["name", "answer"]


def test_column_of_a_detail_that_is_one_of_the_input_is_refused_before_a_row_is_paid(
    job: SliceJob, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"name": ["a"], "Answer_Seconds": [1.0]}), tmp_path / "in" / "a.parquet")
    cluster = InProcess()
    with pytest.raises(SliceError, match="'answer_seconds' is also a column of the input"):
        run_in_process(changed(job, publish__details=["seconds"]), cluster)
    assert not cluster.answered


def test_column_of_a_detail_that_an_answer_has_too_is_refused_before_a_row_is_paid(job: SliceJob) -> None:
    schema = {"type": "object", "properties": {"answer_Seconds": {"type": "integer"}}}
    asks = changed(job, output_schema=schema, output_mode="columns", prompt="{name}")
    cluster = InProcess()
    with pytest.raises(SliceError, match="'answer_Seconds' is also a detail's"):
        run_in_process(changed(asks, publish__details=["seconds"]), cluster)
    assert not cluster.answered


def test_slice_without_an_answer_has_the_same_columns(job: SliceJob, tmp_path: Path) -> None:
    asks = changed(job, publish__details=["seconds", "finish_reason"], source__on_empty="publish")
    pq.write_table(pa.table({"name": pa.array([], pa.string())}), tmp_path / "in" / "a.parquet")
    run_in_process(asks)
    assert published(job).schema.names == ["name", "answer", "answer_seconds", "answer_finish_reason"]
    assert published(job).num_rows == 0


def test_unknown_detail_is_named_with_those_that_there_are(job: SliceJob) -> None:
    with pytest.raises(ValueError, match=r"(?s)publish\.details.*finish_reason"):
        changed(job, publish__details=["second"])
