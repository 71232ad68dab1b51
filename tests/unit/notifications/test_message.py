from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.notifications.message import SliceMessage, SliceStatus
from airflow_provider_raydatallm.task.slice_entry import SliceEntry

COUNTS = {"planned": 600, "succeeded": 591, "quarantined": 9}
LINKS = {"Slice": "http://airflow/x?a=1&b=2", "Ray job": "http://ray/jobs/j"}


def entry(**given: Any) -> SliceEntry:
    return SliceEntry(slice_key="2026-01-31", paths={"table": "/t"}, **given)


def status(state: str | None = "published", figures: SliceEntry | None = None, **given: Any) -> SliceStatus:
    return SliceStatus("customers.ask", state, figures or entry(), links=LINKS, **given)


def test_finished_slice_has_counts_that_add_up_reasons_tokens_speed_and_cost() -> None:
    # In the order in which PostgreSQL gives them back: of its names' lengths.
    reasons = {"Rare": 1, "Other": 2, "KeyError": 2, "InvalidOutput": 4}
    figures = entry(
        outcome="published", counts=COUNTS, quarantine_reasons=reasons, rows_per_s=45.6,
        tokens={"input": 12_345, "output": 2_400},
    )  # fmt: skip
    message = SliceMessage("customers", (status(figures=figures, cost="1.25 EUR"),))
    assert message.title == "customers.ask: slice 2026-01-31 is published, 9 rows in quarantine"
    assert message.text.splitlines() == [
        message.title,
        "600 rows planned = 591 answered + 9 in quarantine (1.5%, 4 InvalidOutput, 2 Other, 2 KeyError)",
        "12,345 tokens in, 2,400 out; 46 rows/s; 1.25 EUR",
        "Slice: http://airflow/x?a=1&b=2",
        "Ray job: http://ray/jobs/j",
    ]


def test_figures_that_nobody_measured_are_left_out() -> None:
    figures = entry(outcome="empty", counts=dict.fromkeys(COUNTS, 0))
    assert SliceMessage("customers", (SliceStatus("customers.ask", "empty", figures),)).text.splitlines() == [
        "customers.ask: slice 2026-01-31 has no rows",
        "0 rows planned = 0 answered + 0 in quarantine",
    ]


def test_rows_that_stay_published_are_told_where_the_input_is_empty_now() -> None:
    message = SliceMessage("customers", (status("kept", entry(outcome="kept", counts=COUNTS)),))
    assert message.title == "customers.ask: slice 2026-01-31 has no rows now: those published before stay"
    assert message.statuses[0].is_in_time
    assert "600 rows planned = 591 answered + 9 in quarantine (1.5%)" in message.text


def test_counts_that_do_not_add_up_are_told_as_they_are() -> None:
    figures = entry(outcome="published", counts={"succeeded": 3, "quarantined": 2})
    assert status(figures=figures).details == ["0 rows planned = 3 answered + 2 in quarantine"]


@pytest.mark.parametrize(("failure", "says"), [
    (
        Failure("queue", "no room for 4 GPUs", advice=("Add nodes",)),
        "no room for 4 GPUs. Add nodes. Clear the task to run it again",
    ),
    (
        Failure("queue", "no room for 4 GPUs", counts={"planned": 9, "finished": 0}),
        "no room for 4 GPUs. Clear the task to run it again",
    ),
    (
        Failure("engine", "it died", counts={"planned": 9, "finished": 4}),
        "it died. Finished rows are kept: clear the task, and it goes on with the rest",
    ),
    (Failure("input", "'a.csv' has no column 'x'", row_texts=("Jane Doe",)), "'a.csv' has no column 'x'"),
    (Failure("input", "KeyError: 'Jane'", cause="KeyError: 'Jane'\nmore"), "KeyError"),
])  # fmt: skip
def test_failed_slice_says_why_and_what_to_do_without_a_text_of_a_row(failure: Failure, says: str) -> None:
    failed = status("failed", failure=failure)
    assert failed.details == [says]
    assert "Jane" not in repr(failed)


@pytest.mark.parametrize("failure", [Failure("engine", "it died"), None])
def test_nobody_is_asked_to_clear_a_task_that_is_tried_again_by_itself(failure: Failure | None) -> None:
    [failed], [retried] = (status(state, failure=failure).details for state in ("failed", "up_for_retry"))
    assert "clear the task" in failed.lower()
    assert "clear" not in retried.lower()
    assert "the next try" in retried.lower()


def test_running_slice_says_how_far_it_is_and_how_late() -> None:
    progress = {
        "step": "answer", "planned": 4000, "rows": 1280, "rows_per_s": 210.0, "tokens_per_s": 9700.0,
        "eta_s": 1600, "late_s": 1500, "workers": 1, "workers_needed": 3,
    }  # fmt: skip
    late = status("deferred", progress=progress)
    assert late.headline == "customers.ask: slice 2026-01-31 is running"
    assert late.details == [
        "answering: 1,280 of 4,000 rows (32%), 210 rows/s, 9,700 tokens/s, 1,600 s left, 1,500 s later than "
        "finish_by (3 workers would be in time)"
    ]
    assert not late.is_in_time
    assert status("deferred", progress={**progress, "late_s": -60}).is_in_time
    assert not status("deferred", progress={**progress, "late_s": None}).is_in_time
    assert not status("deferred").is_in_time
    assert not status(None).is_in_time
    assert not status("failed").is_in_time
    assert status("published").is_in_time


def test_several_slices_are_counted_by_state_and_told_each() -> None:
    message = SliceMessage("customers", (status("published"), status("failed"), status("published")))
    assert message.title == "customers: 3 slices: 2 published, 1 failed"
    assert message.text.count("Slice: http") == 3
    assert len(list(message)) == 3
    many = SliceMessage("customers", (status("published"),) * 25)
    assert many.text.count("Slice: http") == 20
    assert many.text.endswith("... and 5 more")


def test_without_slices_the_message_says_so() -> None:
    assert SliceMessage("customers").text == "customers: no task has begun a slice"
    assert SliceMessage("customers", note="no").title == "customers: no"


def test_progress_of_a_folder_that_others_write_is_harmless() -> None:
    progress = {"step": "attach", "holder": "x\n<!channel> \u202e @here api_key=abcdefgh"}
    status = SliceStatus("d.t", "running", progress=progress)
    [line] = [line for line in status.details if "x" in line]
    assert "abcdefgh" not in line
    assert line.isprintable()
    assert not set("<@") & set(line)


def test_hostile_names_are_harmless() -> None:
    hostile = "<!channel> <script>alert(1)</script> *x* @here\n&"
    figures = SliceEntry(slice_key=hostile, paths={}, outcome="published", counts={**COUNTS},
                         quarantine_reasons={"<b>": 9}, trial="<i>")  # fmt: skip
    failure = Failure("engine", hostile, advice=(hostile,))
    message = SliceMessage("customers", (SliceStatus("customers.ask", "failed", figures, failure, LINKS),))
    for text in (message.title, message.text):
        assert not set("<>@*") & set(text)
    assert "\n" not in message.title
    assert "<script" not in message.html
    assert 'href="http://airflow/x?a=1&amp;b=2"' in message.html
