"""Engine `ray_data_llm`: how its rows become answers."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS
from airflow_provider_raydatallm.processor.engines.ray_data_llm import _to_answer

_ROW = {
    "__unit": 1, "__offset": 2, "generated_text": "Law Firm", "num_input_tokens": 7,
    "num_generated_tokens": 3, "time_taken_llm": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("error", ["", "ValueError: too long"])
def test_answer_has_every_answer_field(error: str) -> None:
    answer = _to_answer({"row": {**_ROW, "__inference_error__": error}}, data_column="row")
    assert set(answer) == {"__unit", "__offset", *(field.name for field in ANSWER_FIELDS)}
    names = ("__unit", "__offset", "text", "input_tokens", "error_type")
    expected = (1, 2, None, None, "ValueError") if error else (1, 2, "Law Firm", 7, None)
    assert tuple(answer[name] for name in names) == expected
