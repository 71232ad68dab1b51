from __future__ import annotations

import json

import pytest

from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.task.job.verdict import (
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


def watch_of(*lines: str) -> JobWatch:
    watch = JobWatch(NONCE)
    watch.read_log(lines)
    return watch


def test_report_decides_regardless_of_the_status() -> None:
    for status in ("RUNNING", "FAILED", "STOPPED", "SUCCEEDED", None):
        assert watch_of("noise", REPORT).decide(status) == Finished({"outcome": "published"})


def test_success_without_a_report_is_not_a_success() -> None:
    watch = watch_of("noise")
    verdicts = [watch.decide("SUCCEEDED", "exit 0") for _ in range(3)]
    assert verdicts == [Wait(), Wait(), EndedWithoutReport("ended", "exit 0", ("noise",))]


@pytest.mark.parametrize("line", [
    encode_line("report", "another attempt", {"outcome": "published"}),
    REPORT.replace("published", "publishes"), REPORT[: len(REPORT) // 2], "(worker pid=1) " + REPORT,
    "@ray-llm report n1 2",
])  # fmt: skip
def test_foreign_or_damaged_line_is_not_a_report(line: str) -> None:
    watch = watch_of(line)
    assert isinstance([watch.decide("SUCCEEDED") for _ in range(3)][-1], EndedWithoutReport)


def test_error_and_progress_are_read() -> None:
    error = encode_line("error", NONCE, {"kind": "input", "sentence": "no column"})
    assert watch_of(error).decide("FAILED") == Failed(Failure("input", "no column"))
    progress = {
        "step": "answer", "rows": 50, "planned": 200, "rows_per_s": 10.0, "tokens_per_s": 100.0,
        "eta_s": 15.0,
    }  # fmt: skip
    watch = JobWatch(NONCE)
    first, second = (encode_line("progress", NONCE, p) for p in ({"step": "plan"}, progress))
    assert watch.read_log([first, "noise", second]) == [{"step": "plan"}, "noise", progress]
    assert watch.read_log_end(f"{first}\nnoise\n{second}") == progress
    assert watch.decide("RUNNING") == Wait()
    assert progress_text(progress) == "answering: 50 of 200 rows (25%), 10 rows/s, 100 tokens/s, 15 s left"
    assert progress_text({"step": "plan"}) == "planning the slice"


def test_what_the_job_prints_of_its_error_for_people_stays_in_its_own_log() -> None:
    """It may quote a row, and the task says the error itself."""
    error = encode_line("error", NONCE, {"kind": "input", "sentence": "a value is wrong"})
    lines = ["ERROR before", error, "ValueError: 'Jane Doe'", "error: a value is wrong: 'Jane Doe'"]
    watch = JobWatch(NONCE)
    assert watch.read_log(lines) == ["ERROR before"]
    watch.read_log_end("\n".join(lines))
    verdict = watch.decide("FAILED")
    assert isinstance(verdict, Failed)
    assert verdict.failure.log == ("ERROR before",)


def test_plan_and_a_long_start_are_told() -> None:
    plan = {"step": "planned", "plan": [["rows", "5 in 1 file(s)"], ["engine", "VllmEngine, m"]]}
    assert progress_text(plan) == "rows    5 in 1 file(s)\nengine  VllmEngine, m"
    start = {"step": "start", "rows": 0, "planned": 5, "elapsed_s": 100.0, "queued_s": 60.0}
    assert progress_text(start) == "starting the engine: for 40 s"
    assert progress_text({**start, "queued_s": 99.0}) == "starting the engine"


def test_texts_of_an_error_are_escaped() -> None:
    error = {"kind": "input", "sentence": "\x1b[31mno::endgroup::", "frames": ["at a\rb"]}
    failed = watch_of(encode_line("error", NONCE, error)).decide("FAILED")
    assert failed == Failed(Failure("input", "no: :endgroup::", frames=("at a\\rb",)))


def test_a_report_outweighs_an_error_whichever_comes_first() -> None:
    error = encode_line("error", NONCE, {"kind": "transient", "sentence": "storage is away"})
    for lines in ([error, REPORT], [REPORT, error]):
        assert watch_of(*lines).decide("FAILED") == Finished({"outcome": "published"})


def test_last_lines_read_twice_are_kept_once() -> None:
    watch = watch_of("a", "b", "c")
    watch.read_log_end("b\nc\n")
    assert [watch.decide("FAILED") for _ in range(3)][-1] == EndedWithoutReport("ended", "", ("b", "c"))


def test_job_that_stays_unknown_ended_without_a_report() -> None:
    watch = JobWatch(NONCE)
    assert [watch.decide(None), watch.decide("RUNNING"), watch.decide(None), watch.decide(None)] == [
        Wait()
    ] * 4
    assert watch.decide(None) == EndedWithoutReport("unknown")


def test_stopped_job_without_a_report_is_reported_as_stopped() -> None:
    watch = JobWatch(NONCE)
    assert [watch.decide("STOPPED") for _ in range(3)][-1] == EndedWithoutReport("stopped")


def test_marked_line_has_a_maximum_size() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_line("report", NONCE, {"x": "y" * 70_000})


@pytest.mark.parametrize("verdict", [
    Finished({"outcome": "published"}), Failed(Failure("transient", "m", frames=("at a.py:1 in f: g()",))),
    EndedWithoutReport("ended", "m", ("a", "b")), TimedOut(), ClusterUnreachable(Failure("connection", "m")),
])  # fmt: skip
def test_verdict_travels_as_json(verdict: Verdict) -> None:
    assert from_event(json.loads(json.dumps(to_event(verdict)))) == verdict
