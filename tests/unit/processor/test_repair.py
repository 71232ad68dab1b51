"""A row with an invalid answer is asked again with what is wrong, and has one answer or one place in
quarantine, whatever kills the run in between."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
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
from tests.support.slice_files import shown

N = 60
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 120}}, "required": ["age"]}
#: Rows by when their answers become valid: after so many corrections. Others' are at once.
STUBBORN = {3: 1, 17: 2, 18: 9, 41: 1}
#: A row whose answer max_tokens cuts.
CUT = 50


class Model:
    """Says an age that is too high, until it is told so as often as a row needs."""

    def __init__(self) -> None:
        self.conversations: list[list[dict[str, Any]]] = []

    def __call__(self, batch: pa.Table) -> pa.Table:
        texts, reasons = [], []
        for request in map(json.loads, batch.column("__request").to_pylist()):
            messages = request["messages"]
            self.conversations.append(messages)
            n = int(messages[0]["content"])
            told = [m["content"] for m in messages if m["role"] == "user"][1:]
            said = [m["content"] for m in messages if m["role"] == "assistant"]
            attempt = len(said)
            assert [json.loads(text)["age"] for text in said] == [200 + i for i in range(attempt)]
            for i, text in enumerate(told):
                assert f"$.age: {200 + i} is greater than the maximum of 120" in text
            assert request["cells"][1:] == [[[0, len(m["content"])]] for m in messages[1:]]
            texts.append(json.dumps({"age": n if attempt >= STUBBORN.get(n, 0) else 200 + attempt}))
            if n == CUT:
                texts[-1] = texts[-1][:-2]
            reasons.append("length" if n == CUT else "stop")
        count = batch.num_rows
        return answer_table(
            batch, text=texts, finish_reason=reasons, input_tokens=[5] * count, output_tokens=[2] * count,
            cached_tokens=[0] * count, saved_tokens=[0] * count,
            engine_seconds=[0.1] * count, finished_at=[time.time()] * count,
        )  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"n": list(range(N))}), tmp_path / "in.parquet", row_group_size=15)
    return job_of(
        input_path=f"{tmp_path}/in.parquet",
        output_path=f"{tmp_path}/out",
        prompt="{n}",
        output_schema=SCHEMA,
        quality__repair=2,
    )


def published(job: SliceJob) -> pa.Table:
    return pq.read_table(job.slice_path, partitioning=None)


def quarantined(job: SliceJob) -> dict[int, tuple[str, str]]:
    rows = pq.read_table(job.paths.quarantine, partitioning=None).to_pylist()
    return {row["n"]: (row["__error_type"], row["__error"]) for row in rows}


def check(job: SliceJob, report: Any, ages: list[int] | None = None) -> None:
    table = published(job)
    assert table.column("n").to_pylist() == [n for n in range(N) if n not in (18, CUT)]
    ages = ages or [answer["age"] for answer in table.column("answer").to_pylist()]
    assert ages == table.column("n").to_pylist()
    kinds = quarantined(job)
    assert set(kinds) == {18, CUT}
    # What it said last.
    assert kinds[18] == (
        "InvalidOutput",
        "the answer is not valid by output_schema: $.age: 202 is greater than the maximum of 120: "
        "'{\"age\": 202}'",
    )
    assert kinds[CUT][0] == "TruncatedAnswer"
    counts = report.counts
    assert (counts.planned, counts.succeeded, counts.quarantined) == (N, N - 2, 2)
    assert (counts.invalid_output, counts.repaired, counts.truncated) == (2, 3, 1)


def test_gate_may_look_at_the_share_of_repaired_rows(job: SliceJob) -> None:
    gate = {"of": "repaired", "max": 0.04}
    strict = changed(job, quality__gates=[gate])
    with pytest.raises(SliceError, match=re.escape("did not pass: repaired is 0.05, above max 0.04")):
        run(strict, InProcess(answer=Model()))


def test_rows_that_an_earlier_version_repaired_count_when_they_are_taken_over(job: SliceJob) -> None:
    run(job, InProcess(answer=Model()))
    cluster = InProcess(answer=Model())
    report = run(changed(job, rerun__on_config_change="recompute", publish__details=["repaired"]), cluster)
    assert (report.counts.repaired, cluster.answered) == (3, 0)


def test_invalid_answer_is_asked_again_with_what_is_wrong_and_all_its_tokens_count(job: SliceJob) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    report = run(job, cluster)
    check(job, report)
    asked = N + 1 + 2 + 2 + 1  # 3 and 41 once more, 17 and 18 twice
    assert cluster.answered == asked
    assert (report.tokens.input, report.tokens.output) == (5 * asked, 2 * asked)


def test_without_repair_a_row_with_an_invalid_answer_is_asked_once(job: SliceJob) -> None:
    cluster = InProcess(answer=Model())
    report = run(changed(job, quality__repair=0), cluster)
    assert cluster.answered == N
    assert report.counts.invalid_output == 5
    assert {n: kind for n, (kind, _) in quarantined(job).items()} == {
        **dict.fromkeys(STUBBORN, "InvalidOutput"), CUT: "TruncatedAnswer",
    }  # fmt: skip


class KilledError(Exception):
    pass


def kill_after(batches: int) -> Callable[[pa.Table], None]:
    count = 0

    def die(batch: pa.Table) -> None:
        nonlocal count
        count += 1
        if count > batches:
            raise KilledError

    return die


@pytest.mark.slow
@pytest.mark.parametrize("batches", [0, 7, 12, 14, 15])
def test_kill_between_attempts_loses_no_row_and_no_attempt(job: SliceJob, batches: int) -> None:
    killed = InProcess(answer=Model(), batch=5, before_batch=kill_after(batches))
    with pytest.raises(KilledError):
        run(job, killed)
    assert shown(job) == set()
    second = InProcess(answer=Model(), batch=5)
    report = run(job, second)
    check(job, report)
    assert killed.answered + second.answered == N + 6
    assert report.tokens.output == 2 * (N + 6)


def test_rows_that_were_given_up_are_asked_from_the_start_by_a_retry(job: SliceJob) -> None:
    run(job, InProcess(answer=Model()))
    again = Model()
    report = run(changed(job, rerun__retry_quarantined=True), InProcess(answer=again))
    assert [len(c) for c in again.conversations] == [1, 1, 3, 5]
    assert report.counts.invalid_output == 2
    assert set(quarantined(job)) == {18, CUT}


def test_share_of_invalid_answers_has_a_limit_of_its_own(job: SliceJob) -> None:
    strict = changed(job, quality__repair=1, quality__max_invalid=0.04)  # 2.4 rows; 17, 18 and 50 remain
    with pytest.raises(
        SliceError,
        match=r"3 of 60 rows have an invalid answer, which is more than quality.max_invalid 0.04 "
        r"\(2 InvalidOutput, 1 TruncatedAnswer\): row 18 of .*, row 51 of ",
    ) as refused:
        run(strict, InProcess(answer=Model()))
    assert [advice.partition(":")[0] for advice in refused.value.failure.advice] == [
        "Change the prompt, or raise quality.repair", "Raise max_tokens",
        "Or raise quality.max_invalid to publish without them",
        "Nothing is published, and the answered rows are kept",
    ]  # fmt: skip
    assert shown(job) == set()
    cluster = InProcess(answer=Model())
    report = run(changed(strict, quality__max_invalid=0.05), cluster)
    assert (report.counts.invalid_output, cluster.answered) == (3, 0)


def test_slice_with_too_many_invalid_answers_is_not_answered_to_its_end(job: SliceJob) -> None:
    cluster = InProcess(answer=Model(), batch=5)
    strict = changed(job, quality__repair=0, quality__max_invalid=0.01)
    with pytest.raises(SliceError, match=r"quality.max_invalid 0.01 ") as raised:
        run(strict, cluster)
    assert cluster.answered < N
    failure = raised.value.failure
    left = re.search(r", while (\d+) are still to be asked", failure.sentence)
    assert left is not None
    assert failure.counts["planned"] - failure.counts["finished"] == int(left[1])
    assert failure.counts["failed"] <= failure.counts["finished"]
    progress = json.loads(Path(strict.paths.metadata, "progress.json").read_text())
    assert (progress["rows"], progress["failed"]) == (failure.counts["finished"], failure.counts["failed"])


def test_column_of_a_schema_that_the_input_has_too_is_refused_before_a_row_is_paid_for(job: SliceJob) -> None:
    schema = {**SCHEMA, "properties": {"N": {"type": "integer"}}, "required": []}
    cluster = InProcess(answer=Model())
    with pytest.raises(SliceError, match=r"column 'N' is also a column of the input. Rename that property"):
        run(changed(job, output_schema=schema, output_mode="columns"), cluster)
    assert cluster.answered == 0
    report = run(changed(job, output_mode="columns"), cluster)
    check(job, report, published(job).column("age").to_pylist())
