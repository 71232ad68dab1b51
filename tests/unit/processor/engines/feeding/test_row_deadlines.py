"""When a row is overdue: never before anything finished, and never by the pace of short answers."""

from __future__ import annotations

from airflow_provider_raydatallm.processor.engines.feeding.row_deadlines import RowDeadlines


def test_deadline_follows_the_slowest_row_and_the_tokens_of_an_answer() -> None:
    deadlines = RowDeadlines()
    assert deadlines.seconds() is None
    deadlines.add([None, 1.0], [5, None])  # an engine that does not tell
    assert deadlines.seconds() is None
    deadlines.add([10.0, 64.0], [100, 640])
    assert deadlines.seconds() == (256.0, 0.4)


def test_short_answers_make_no_short_deadline() -> None:
    deadlines = RowDeadlines()
    deadlines.add([1.6], [1])
    assert deadlines.seconds() == (120.0, 0.4)  # as if it had 16 tokens
