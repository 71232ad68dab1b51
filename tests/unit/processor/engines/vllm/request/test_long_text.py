from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from airflow_provider_raydatallm.processor.engines.vllm.request.long_text import LONG_TEXT, LongText
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from tests.support.bert import write_bert_tokenizer
from tests.support.in_process import job_of


@drawn(before=st.integers(0, 2), after=st.integers(0, 2), text=st.integers(1, 60), limit=st.integers(5, 20))
def test_windows_hold_each_token_of_the_text_once_between_the_special_ones(
    before: int, after: int, text: int, limit: int
) -> None:
    special, end = [-1] * before, [-2] * after
    windows = LongText(before, after, True).windows([*special, *range(text), *end], limit)
    assert all(window[:before] == special and window[len(window) - after :] == end for window in windows)
    assert [token for window in windows for token in window if token >= 0] == list(range(text))
    assert {len(window) for window in windows[:-1]} <= {limit}
    assert len(windows[-1]) <= limit


def test_limit_that_special_tokens_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len is 2, which special tokens fill: raise it"):
        LongText(1, 1, True).windows([0, 5, 6, 1], 2)


def test_mean_is_weighted_by_the_tokens_of_the_text() -> None:
    windows, vectors = [[0, 5, 5, 5, 1], [0, 5, 1]], [np.array([2.0, 0]), np.array([0, 8.0])]
    assert LongText(1, 1, False).mean(vectors, windows).tolist() == [1.5, 2.0]
    assert LongText(1, 1, True).mean(vectors, windows).tolist() == pytest.approx([0.6, 0.8])
    assert LongText(1, 1, True).mean([np.zeros(2)], windows[:1]).tolist() == [0, 0]


def test_worker_is_told_how_to_cut_only_where_a_job_asks_for_it(tmp_path: Path) -> None:
    model = str(write_bert_tokenizer(tmp_path))
    request = json.dumps({"messages": [{"role": "user", "content": "a bank"}], "sampling_params": {}})
    given: dict[str, Any] = {"task": "embed", "engine": "vllm", "model_source": model}

    def told(**more: Any) -> Any:
        [row] = PromptTokenizer(job_of(input_path="/i", output_path="/o", **given, **more))([request])
        return json.loads(row.params).get(LONG_TEXT)

    assert told() is None
    chunk = told(quality__on_too_long="chunk", embedding__normalize=False)
    assert chunk == {"before": 1, "after": 1, "normalize": False}
