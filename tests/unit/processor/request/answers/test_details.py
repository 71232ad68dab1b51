"""Several answers of a row, and the columns beside them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.columns import one_or_several
from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser
from tests.support.in_process import job_of

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def parse(rows: list[list[dict[str, Any]]], postprocess: Any = None, **arguments: Any) -> tuple[Any, Any]:
    """
    :param rows: the texts of each row.
    """
    ids = pa.table({
        "__unit": pa.array([0] * len(rows), pa.int32()), "__offset": pa.array(range(len(rows)), pa.int64()),
        "__request": ["{}"] * len(rows), "__row": ["{}"] * len(rows),
    })  # fmt: skip
    columns = [one_or_several([{"finish_reason": "stop", **text} for text in texts]) for texts in rows]
    names = {name for of_row in columns for name in of_row}
    answers = answer_table(ids, **{name: [of_row.get(name) for of_row in columns] for name in names})
    job = job_of(input_path="/i", output_path="/o", engine="vllm", **arguments)
    return TextParser(job, postprocess)(answers)


def test_reasoning_and_probability_stand_beside_an_answer_that_is_checked_without_them() -> None:
    text = {"text": '{"n": 1}', "reasoning": "Hm.", "logprob": -2.5, "logprob_tokens": 5}
    parsed, failed = parse(
        [[text], [{**text, "text": None, "finish_reason": "length"}], [{**text, "text": "Hm."}]],
        reasoning_parser="qwen3", logprobs=True, output_schema=SCHEMA, output_mode="columns",
    )  # fmt: skip
    row = {k: v for k, v in parsed.to_pylist()[0].items() if not k.startswith("__")}
    details = {"answer_reasoning": "Hm.", "answer_logprob": -2.5, "answer_logprob_tokens": 5}
    assert (parsed.num_rows, row) == (1, {"n": 1, **details})
    assert failed.column("error_type").to_pylist() == ["TruncatedAnswer", "InvalidOutput"]
    assert failed.column("error").to_pylist()[0] == "the answer is missing (max_tokens cut it): None"


def test_several_answers_are_a_list_of_valid_ones_and_one_that_is_not_fails_the_row() -> None:
    one, two = {"text": '{"n": 1}', "reasoning": "a"}, {"text": '{"n": 2}', "reasoning": None}
    cut = {"text": '{"n"', "finish_reason": "length"}
    parsed, failed = parse(
        [[one, two], [one, cut], [two]],
        reasoning_parser="qwen3",
        output_schema=SCHEMA,
        sampling_params={"n": 2},
    )
    assert parsed.column("answer").to_pylist() == [[{"n": 1}, {"n": 2}], [{"n": 2}]]
    assert parsed.column("answer_reasoning").to_pylist() == [["a", None], [None]]
    assert parsed.column("__truncated").to_pylist() == [0, 0]
    [error] = failed.column("error").to_pylist()
    assert error.startswith("the answer 2 of 2 is not valid JSON")
    assert failed.column("error_type").to_pylist() == ["TruncatedAnswer"]


def test_truncated_counts_a_row_of_which_one_text_was_cut() -> None:
    parsed, _ = parse([[{"text": "a"}, {"text": "b", "finish_reason": "length"}]], sampling_params={"n": 2})
    assert parsed.column("__truncated").to_pylist() == [1]
    parsed, _ = parse(
        [[{"text": "a"}, {"text": "b", "finish_reason": "repetition"}]], sampling_params={"n": 2}
    )
    assert parsed.column("__degenerate").to_pylist() == [1]


def test_postprocess_sees_all_answers_and_the_columns_beside_them() -> None:
    def vote(row: dict[str, Any]) -> dict[str, Any]:
        assert row["answer_reasoning"] == ["x", "x", "x"]
        return {"answer": max(row["answer"], key=row["answer"].count)}

    texts = [{"text": text, "reasoning": "x"} for text in "aba"]
    parsed, _ = parse([texts], vote, reasoning_parser="qwen3", sampling_params={"n": 3})
    assert parsed.column("answer").to_pylist() == ["a"]


@pytest.mark.parametrize("texts", [[{"text": "a"}], [{"text": "a"}, {"text": "b"}]])
def test_job_for_one_answer_publishes_one_whatever_a_row_asks_for(texts: list[dict[str, Any]]) -> None:
    parsed, _ = parse([texts])
    assert parsed.column("answer").to_pylist() == ["a"]
