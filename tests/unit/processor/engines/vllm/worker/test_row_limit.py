"""Rows with a lower limit than their engine's, in vLLM's own parameters and words."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.vllm.worker.row_limit import check_length, within
from airflow_provider_raydatallm.processor.request.answers.parser import _TOO_LONG


@pytest.mark.slow
@pytest.mark.parametrize(("length", "asked", "room"), [
    (10, 5, 5), (10, 6, 6), (10, 7, 6), (10, None, 6), (15, 8, 1), (16, 1, None), (17, 1, None),
])  # fmt: skip
def test_answer_ends_at_the_rows_own_limit(length: int, asked: int | None, room: int | None) -> None:
    from vllm import SamplingParams

    params: Any = SamplingParams(max_tokens=asked, temperature=0.5)
    if room is None:
        with pytest.raises(ValueError, match=_TOO_LONG):
            within(params, range(length), 16)
        return
    held = within(params, range(length), 16)
    assert (held.max_tokens, held.temperature) == (room, 0.5)
    assert params.max_tokens == asked  # of all rows that ask the same


def test_text_as_long_as_the_limit_is_not_too_long() -> None:
    check_length(range(16), 16)
    with pytest.raises(ValueError, match=_TOO_LONG):
        check_length(range(17), 16)
