from __future__ import annotations

import pytest

from airflow_provider_raydatallm.lines import encode_line, progress_text
from airflow_provider_raydatallm.polling import Failed, Finished, JobWatch, Silent, Wait

NONCE = "n1"
REPORT = encode_line("report", NONCE, {"outcome": "published"}) + "\n"


def test_report_decides_whatever_the_status_says() -> None:
    for status in ("RUNNING", "FAILED", "STOPPED", "SUCCEEDED"):
        assert JobWatch(NONCE).look(status, f"noise\n{REPORT}") == Finished({"outcome": "published"})


def test_success_without_a_report_is_silence_and_never_success() -> None:
    watch = JobWatch(NONCE)
    verdicts = [watch.look("SUCCEEDED", "noise") for _ in range(3)]
    assert verdicts == [Wait(), Wait(), Silent("ended", ("noise",))]


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
    watch = JobWatch(NONCE)
    last = [watch.look("SUCCEEDED", line) for _ in range(3)][-1]
    assert isinstance(last, Silent)


def test_error_and_progress_are_told() -> None:
    error = encode_line("error", NONCE, {"kind": "input", "message": "no column"}) + "\n"
    assert JobWatch(NONCE).look("FAILED", error) == Failed("input", "no column")
    progress = {
        "step": "answer",
        "rows": 50,
        "planned": 200,
        "rows_per_s": 10.0,
        "tokens_per_s": 100.0,
        "eta_s": 15.0,
    }
    watch = JobWatch(NONCE)
    log = (
        encode_line("progress", NONCE, {"step": "plan"})
        + "\n"
        + encode_line("progress", NONCE, progress)
        + "\n"
    )
    assert watch.look("RUNNING", log) == Wait(progress)
    assert watch.look("RUNNING", log) == Wait()
    assert progress_text(progress) == "answering: 50 of 200 rows (25%), 10 rows/s, 100 tokens/s, 15 s left"
    assert progress_text({"step": "plan"}) == "planning"


def test_line_that_is_still_being_written_is_read_when_it_is_whole() -> None:
    watch = JobWatch(NONCE)
    assert watch.look("RUNNING", REPORT[:30]) == Wait()
    assert watch.look("RUNNING", REPORT) == Finished({"outcome": "published"})
    assert JobWatch(NONCE).look("SUCCEEDED", REPORT.rstrip("\n")) == Finished({"outcome": "published"})


def test_job_that_the_cluster_forgot_is_silence() -> None:
    assert JobWatch(NONCE).look(None, "") == Silent("unknown")


def test_marked_line_has_a_bound() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_line("report", NONCE, {"x": "y" * 70_000})
