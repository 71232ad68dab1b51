from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS
from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.request.answer_shape import AnswerParser, arrow_type

SCHEMA = {
    "type": "object",
    "properties": {
        "industry": {"enum": ["A", "B"]},
        "score": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"$ref": "#/$defs/Inner"},
    },
    "$defs": {"Inner": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


def both(
    texts: list[str | None],
    postprocess: Any = None,
    errors: list[str | None] | None = None,
    reasons: list[str | None] | None = None,
    **given: Any,
) -> tuple[pa.Table, pa.Table]:
    """Answered and failed rows."""
    least = {"slice_key": "k", "input_path": "/i", "output_path": "/o", "model_source": "m", "prompt": "x"}
    job = SliceJob.model_validate({**least, **given})
    n = len(texts)
    errors = errors or [None] * n
    requests = pa.table({"__unit": [0] * n, "__offset": list(range(n)), "__row": ['{"c": 1}'] * n})
    answers = answer_table(
        requests, text=texts, input_tokens=[1] * n, output_tokens=[1] * n, engine_seconds=[0.1] * n,
        finished_at=[1.0] * n, finish_reason=reasons or [None] * n,
        error_type=[e and "ValueError" for e in errors], error=errors,
    )  # fmt: skip
    return AnswerParser(job, postprocess)(answers)


def shaped(texts: list[str | None], postprocess: Any = None, **given: Any) -> pa.Table:
    return both(texts, postprocess, **given)[0]


def why(table: pa.Table) -> list[tuple[int, str, str]]:
    return [(r["__offset"], r["error_type"], r["error"]) for r in table.to_pylist()]


def test_text_is_published_as_it_is() -> None:
    table = shaped(["a", ""])
    assert table.column("answer").to_pylist() == ["a", ""]
    assert {f.name for f in COUNT_FIELDS} <= set(table.column_names)


def test_what_max_tokens_cut_is_counted_unless_its_shape_shows_that_it_is_whole() -> None:
    text = shaped(["a", "b", "c"], reasons=["length", "stop", None])
    assert text.column("__truncated").to_pylist() == [1, 0, None]
    rows, failed = both(["a", "x", "y"], reasons=["length", "length", "stop"], choices=["a", "b"])
    assert rows.column("__truncated").to_pylist() == [0]
    assert why(failed) == [
        (1, "TruncatedAnswer", "the answer is none of the choices (max_tokens cut it): 'x'"),
        (2, "InvalidAnswer", "the answer is none of the choices: 'y'"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: The decoder prompt (length 310) is longer than the maximum model length of 256.",
        "VLLMValidationError: This model's maximum context length is 256 tokens. However, you requested 16",
    ],
)
def test_prompt_that_the_engine_refuses_for_its_length_is_told_apart(said: str) -> None:
    _, failed = both([None, None], errors=[said, "ValueError: else"])
    assert [kind for _, kind, _ in why(failed)] == ["PromptTooLong", "ValueError"]


def test_answer_outside_the_choices_has_failed() -> None:
    rows, failed = both(["a", "ab", None], choices=["a", "b"])
    assert rows.column("answer").to_pylist() == ["a"]
    assert why(failed) == [
        (1, "InvalidAnswer", "the answer is none of the choices: 'ab'"),
        (2, "InvalidAnswer", "the answer is none of the choices: None"),
    ]


def test_row_that_failed_in_the_engine_keeps_its_error_and_no_other_from_its_answer() -> None:
    rows, failed = both(["a", None, "c"], errors=[None, "ValueError: too long", None])
    assert rows.column("__offset").to_pylist() == [0, 2]
    assert why(failed) == [(1, "ValueError", "ValueError: too long")]


def test_schema_that_says_all_becomes_a_struct() -> None:
    rows, failed = both(
        [
            '{"industry": "A", "score": 1, "tags": ["x"], "inner": {"n": 3}}',
            '{"industry": "A", "sco',
            '{"tags": 3}',
        ],
        output_schema=SCHEMA,
    )
    assert rows.column("answer").to_pylist() == [
        {"industry": "A", "score": 1.0, "tags": ["x"], "inner": {"n": 3}},
    ]
    assert [r[:2] for r in why(failed)] == [(1, "InvalidAnswer"), (2, "InvalidAnswer")]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "additionalProperties": {"type": "string"},
        },
        {
            "$ref": "#/$defs/T",
            "$defs": {"T": {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}},
        },
    ],
)
def test_schema_that_leaves_something_open_is_published_as_json_text(schema: dict[str, Any]) -> None:
    assert arrow_type(schema) == pa.string()


def test_postprocess_sees_the_row_and_makes_the_columns() -> None:
    table = shaped(["a", "b"], lambda row: {"both": f"{row['c']}{row['answer']}", "n": row["c"]})
    assert table.column("both").to_pylist() == ["1a", "1b"]
    assert table.column("n").to_pylist() == [1, 1]
    assert "answer" not in table.column_names
    assert shaped(["a"], lambda row: row["answer"].upper()).column("answer").to_pylist() == ["A"]


def test_answer_that_breaks_the_schema_or_every_number_fails_alone() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    rows, failed = both(
        ['{"n": 1}', '{"n": 99999999999999999999}', "{}", '{"n": "x"}', "null"], output_schema=schema
    )
    assert rows.column("answer").to_pylist() == [{"n": 1}]
    assert [r[0] for r in why(failed)] == [1, 2, 3, 4]


def test_failing_postprocess_fails_its_row_alone() -> None:
    rows, failed = both(["a", "b"], lambda row: {"x": {"a": 1}[row["answer"]]})
    assert rows.column("x").to_pylist() == [1]
    assert why(failed) == [(1, "KeyError", "postprocess: 'b'")]


@pytest.mark.parametrize("name", ["output_tokens", "finished_at", "text"])
def test_answer_column_may_have_any_usual_name(name: str) -> None:
    table = shaped(["a"], output_column=name)
    assert table.column(name).to_pylist() == ["a"]


def test_postprocess_cannot_take_the_providers_names_or_mix_types() -> None:
    with pytest.raises(SliceError, match="__unit"):
        shaped(["a"], lambda row: {"__unit": 1})
    with pytest.raises(SliceError, match="different types"):
        shaped(["a", "b"], lambda row: {"x": 1 if row["answer"] == "a" else "text"})
