"""Texts of others stay within their line."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.contract.log.plain_text import plain_lines, plain_text
from airflow_provider_raydatallm.contract.log.progress_text import plan_lines, progress_text, waiting_text


@pytest.mark.parametrize(("text", "plain"), [
    ("a\nb", r"a\nb"), ("a\r\nb", r"a\r\nb"), ("a\0b", r"a\x00b"), ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;title\x07x", "x"), ("a\u202eb\u2066", r"a\u202eb\u2066"), ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
    ("a\U000e0041", r"a\U000e0041"), ("a\x9b2Jb", r"a\x9b2Jb"), ("\x1b", ""), ("a\tb", "a\tb"),
    ("a\ud800b", r"a\ud800b"),
    ("gr\u00fcn \u4e2d \U0001f468\u200d\U0001f469 \u05d0",
    "gr\u00fcn \u4e2d \U0001f468\u200d\U0001f469 \u05d0"),
])  # fmt: skip
def test_control_characters_are_written_and_text_stays(text: str, plain: str) -> None:
    assert plain_text(text) == plain


def test_lines_after_the_first_are_indented() -> None:
    assert plain_lines("a\nb\r\nc\rd") == ["a", "    b", r"    c\rd"]
    assert plain_lines("") == [""]


@pytest.mark.parametrize(("rate", "text"), [
    (0.0127, "0.013"), (0.43, "0.43"), (0.997, "1"), (2.04, "2"), (9.96, "10"), (12.5, "12"),
    (1280.4, "1,280"),
])  # fmt: skip
def test_rate_of_a_running_slice_is_never_shown_as_none(rate: float, text: str) -> None:
    progress = {
        "step": "answer", "rows": 102, "planned": 195, "rows_per_s": rate, "tokens_per_s": rate, "eta_s": 60.0
    }  # fmt: skip
    said = f"answering: 102 of 195 rows (52%), {text} rows/s, {text} tokens/s, 60 s left"
    assert progress_text(progress) == said


def test_texts_of_progress_end_no_line() -> None:
    failed = {"step": "failed", "failure": {"sentence": "a\nERROR b"}}
    waiting = {"waited_s": 1, "needs": {}, "free": {}, "ahead": ["x\nERROR y"]}
    for line in (waiting_text(waiting), *plan_lines({"plan": [("column\nx", "y\nz")]})):
        assert "\n" not in line
    assert progress_text(failed) == "failed: a ERROR b"
    assert progress_text({"step": "a\nb"}) == "a\n    b"
