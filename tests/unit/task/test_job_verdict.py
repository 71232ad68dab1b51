from __future__ import annotations

import json

import pytest

from airflow_provider_raydatallm.contract.log_lines import encode_line
from airflow_provider_raydatallm.contract.progress_text import progress_text
from airflow_provider_raydatallm.task.job_verdict import (
    ClusterUnreachable,
    EndedWithoutReport,
    Failed,
    Finished,
    JobWatch,
    TimedOut,
    Verdict,
    Wait,
    from_event,
    to_event,
)

NONCE = "n1"
REPORT = encode_line("report", NONCE, {"outcome": "published"})


def heard(*lines: str) -> JobWatch:
    watch = JobWatch(NONCE)
    watch.read_log(lines)
    return watch


def test_report_decides_whatever_the_status_says() -> None:
    for status in ("RUNNING", "FAILED", "STOPPED", "SUCCEEDED", None):
        assert heard("noise", REPORT).check(status) == Finished({"outcome": "published"})


def test_success_without_a_report_is_silence_and_never_success() -> None:
    watch = heard("noise")
    verdicts = [watch.check("SUCCEEDED", "exit 0") for _ in range(3)]
    assert verdicts == [Wait(), Wait(), EndedWithoutReport("ended", "exit 0", ("noise",))]


@pytest.mark.parametrize(
    "line",
    [
        encode_line("report", "another attempt", {"outcome": "published"}),
        REPORT.replace("published", "publishes"),
        REPORT[: len(REPORT) // 2],
        "(worker pid=1) " + REPORT,
        "@ray-llm report n1 2",
    ],
)
def test_line_that_is_not_this_attempts_whole_word_is_no_report(line: str) -> None:
    watch = heard(line)
    assert isinstance([watch.check("SUCCEEDED") for _ in range(3)][-1], EndedWithoutReport)


def test_error_and_progress_are_told() -> None:
    error = encode_line("error", NONCE, {"kind": "input", "message": "no column"})
    assert heard(error).check("FAILED") == Failed("input", "no column")
    progress = {
        "step": "answer",
        "rows": 50,
        "planned": 200,
        "rows_per_s": 10.0,
        "tokens_per_s": 100.0,
        "eta_s": 15.0,
    }
    watch = JobWatch(NONCE)
    lines = [
        encode_line("progress", NONCE, {"step": "plan"}),
        "noise",
        encode_line("progress", NONCE, progress),
    ]
    assert watch.read_log(lines) == ["noise"]
    assert watch.check("RUNNING") == Wait(progress)
    assert watch.check("RUNNING") == Wait()
    assert progress_text(progress) == "answering: 50 of 200 rows (25%), 10 rows/s, 100 tokens/s, 15 s left"
    assert progress_text({"step": "plan"}) == "planning"


def test_a_report_outweighs_an_error_whichever_comes_first() -> None:
    error = encode_line("error", NONCE, {"kind": "transient", "message": "storage is away"})
    for lines in ([error, REPORT], [REPORT, error]):
        assert heard(*lines).check("FAILED") == Finished({"outcome": "published"})


def test_end_of_the_log_that_was_heard_before_is_not_kept_twice() -> None:
    watch = heard("a", "b", "c")
    watch.check_status("b\nc\n")
    assert [watch.check("FAILED") for _ in range(3)][-1] == EndedWithoutReport("ended", "", ("b", "c"))


def test_job_that_the_cluster_forgot_is_silence_when_it_stays_so() -> None:
    watch = JobWatch(NONCE)
    assert [watch.check(None), watch.check("RUNNING"), watch.check(None), watch.check(None)] == [Wait()] * 4
    assert watch.check(None) == EndedWithoutReport("unknown")


def test_stopped_job_that_said_nothing_is_told_apart() -> None:
    watch = JobWatch(NONCE)
    assert [watch.check("STOPPED") for _ in range(3)][-1] == EndedWithoutReport("stopped")


def test_marked_line_has_a_bound() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_line("report", NONCE, {"x": "y" * 70_000})


@pytest.mark.parametrize(
    "verdict",
    [
        Finished({"outcome": "published"}),
        Failed("transient", "m"),
        EndedWithoutReport("ended", "m", ("a", "b")),
        TimedOut(),
        ClusterUnreachable("m", refused=True),
    ],
)
def test_verdict_travels_as_json(verdict: Verdict) -> None:
    assert from_event(json.loads(json.dumps(to_event(verdict)))) == verdict
