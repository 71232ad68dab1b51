from __future__ import annotations

import hashlib

import pytest

from airflow_provider_raydatallm.contract.log.marked_lines import MARK, decode_line


@pytest.mark.parametrize("text", ["{", "[" * 60_000, "9" * 5_000, "5", '"text"', "[1]", "true"])
def test_what_a_jobs_other_code_prints_in_a_line_of_the_right_form_is_no_message(text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    for kind in ("report", "error", "progress"):
        assert decode_line(f"{MARK} {kind} n {len(text)} {digest} {text}", "n") is None
