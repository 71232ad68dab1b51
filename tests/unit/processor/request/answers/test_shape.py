from __future__ import annotations

import pickle
import re
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.row_errors import changes_for
from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS
from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.request.answers.grammar import check_compiles
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser
from tests.support.in_process import job_of

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


def parse(
    texts: list[str | None], postprocess: Any = None, errors: list[str | None] | None = None,
    finish_reasons: list[str | None] | None = None, parser: TextParser | None = None, **arguments: Any,
) -> tuple[pa.Table, pa.Table]:  # fmt: skip
    """Returns answered and failed rows."""
    n = len(texts)
    errors = errors or [None] * n
    requests = pa.table({"__unit": [0] * n, "__offset": list(range(n)), "__row": ['{"c": 1}'] * n})
    answers = answer_table(
        requests, text=texts, input_tokens=[1] * n, output_tokens=[1] * n, engine_seconds=[0.1] * n,
        finished_at=[1.0] * n, finish_reason=finish_reasons or [None] * n,
        error_type=[e and "ValueError" for e in errors], error=errors,
    )  # fmt: skip
    job = job_of(input_path="/i", output_path="/o", **arguments)
    return (parser or TextParser(job, postprocess, ["c"]))(answers)


def answered(texts: list[str | None], postprocess: Any = None, **arguments: Any) -> pa.Table:
    return parse(texts, postprocess, **arguments)[0]


def reasons(table: pa.Table) -> list[tuple[int, str, str]]:
    return [(r["__offset"], r["error_type"], r["error"]) for r in table.to_pylist()]


def test_text_is_published_as_it_is() -> None:
    table = answered(["a", ""])
    assert table.column("answer").to_pylist() == ["a", ""]
    assert {f.name for f in COUNT_FIELDS} <= set(table.column_names)


def test_truncated_answer_is_counted_unless_its_shape_is_valid() -> None:
    text = answered(["a", "b", "c"], finish_reasons=["length", "stop", None])
    assert text.column("__truncated").to_pylist() == [1, 0, None]
    rows, failed = parse(["a", "x", "y"], finish_reasons=["length", "length", "stop"], choices=["a", "b"])
    assert rows.column("__truncated").to_pylist() == [0]
    assert reasons(failed) == [
        (1, "TruncatedAnswer", "the answer is none of the choices (max_tokens cut it): 'x'"),
        (2, "InvalidOutput", "the answer is none of the choices: 'y'"),
    ]


def test_answer_that_repeated_itself_is_counted_unless_its_shape_is_valid() -> None:
    reasons_to_finish = ["repetition", "repetition", "length"]
    text = answered(["a", "b", "c"], finish_reasons=reasons_to_finish)
    assert text.column("__degenerate").to_pylist() == [1, 1, 0]
    assert text.column("__truncated").to_pylist() == [0, 0, 1]
    rows, failed = parse(["a", "xxx", "y"], finish_reasons=reasons_to_finish, choices=["a", "b"])
    assert rows.column("__degenerate").to_pylist() == [0]
    message = "the answer is none of the choices (the engine ended it, as it repeated itself): 'xxx'"
    assert reasons(failed)[0] == (1, "DegenerateAnswer", message)


@pytest.mark.parametrize("error", [
    "ValueError: The decoder prompt (length 310) is longer than the maximum model length of 256.",
    "VLLMValidationError: This model's maximum context length is 256 tokens. However, you requested 16",
])  # fmt: skip
def test_prompt_refused_for_its_length_has_an_error_type_of_its_own(error: str) -> None:
    _, failed = parse([None, None], errors=[error, "ValueError: else"])
    assert [kind for _, kind, _ in reasons(failed)] == ["PromptTooLong", "ValueError"]


def test_answer_outside_the_choices_fails_its_row() -> None:
    rows, failed = parse(["a", "ab", None], choices=["a", "b"])
    assert rows.column("answer").to_pylist() == ["a"]
    assert reasons(failed) == [
        (1, "InvalidOutput", "the answer is none of the choices: 'ab'"),
        (2, "InvalidOutput", "the answer is none of the choices: None"),
    ]


def test_row_that_failed_in_the_engine_keeps_the_engines_error() -> None:
    rows, failed = parse(["a", None, "c"], errors=[None, "ValueError: too long", None])
    assert rows.column("__offset").to_pylist() == [0, 2]
    assert reasons(failed) == [(1, "ValueError", "ValueError: too long")]


def test_schema_that_fixes_every_field_becomes_a_struct() -> None:
    rows, failed = parse(
        [
            '{"industry": "A", "score": 1, "tags": ["x"], "inner": {"n": 3}}',
            '{"industry": "A", "sco',
            '{"tags": 3}',
        ],
        output_schema=SCHEMA,
    )
    assert rows.column("answer").to_pylist() == [
        {"industry": "A", "score": 1.0, "tags": ["x"], "inner": {"n": 3}}
    ]
    assert [r[:2] for r in reasons(failed)] == [(1, "InvalidOutput"), (2, "InvalidOutput")]


def test_postprocess_gets_the_row_and_returns_the_columns() -> None:
    table = answered(["a", "b"], lambda row: {"both": f"{row['c']}{row['answer']}", "n": row["c"]})
    assert table.column("both").to_pylist() == ["1a", "1b"]
    assert table.column("n").to_pylist() == [1, 1]
    assert "answer" not in table.column_names
    assert answered(["a"], lambda row: row["answer"].upper()).column("answer").to_pylist() == ["A"]


def test_invalid_json_answer_fails_its_row_alone() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    rows, failed = parse(
        ['{"n": 1}', '{"n": 99999999999999999999}', "{}", '{"n": "x"}', "null"], output_schema=schema
    )
    assert rows.column("answer").to_pylist() == [{"n": 1}]
    assert [r[0] for r in reasons(failed)] == [1, 2, 3, 4]


def test_failing_postprocess_fails_its_row_alone() -> None:
    rows, failed = parse(["a", "b"], lambda row: {"x": {"a": 1}[row["answer"]]})
    assert rows.column("x").to_pylist() == [1]
    [(row, kind, error)] = reasons(failed)
    assert (row, kind) == (1, "KeyError")
    assert re.fullmatch(r"postprocess \(test_shape\.py:\d+\): 'b'", error)


def test_postprocess_that_reads_what_the_request_lacks_is_told_what_its_row_has() -> None:
    job = job_of(input_path="/i", output_path="/o")
    parser = TextParser(job, lambda row: row["dep_time"], ["c", "dep_time"])
    [(_, kind, error)] = reasons(parse(["a"], parser=parser)[1])
    assert kind == "ColumnNotInRequest"
    assert error.endswith("'dep_time': its row has the columns of the request only ('c')")
    [change] = changes_for({f"{kind} in postprocess (mine.py:3)": 2})
    assert change.startswith("Name the column in the prompt")


@pytest.mark.parametrize("name", ["output_tokens", "finished_at", "text"])
def test_answer_column_may_have_any_usual_name(name: str) -> None:
    table = answered(["a"], output_column=name)
    assert table.column(name).to_pylist() == ["a"]


@pytest.mark.parametrize("name", ["__unit", "c"])
def test_function_that_returns_a_name_that_is_taken_ends_the_slice(name: str) -> None:
    with pytest.raises(SliceError, match=f"postprocess returned the column '{name}'"):
        answered(["a", "b"], lambda row: {name: 1})


def test_name_that_only_one_row_returns_is_that_rows_failure() -> None:
    rows, failed = parse(["a", "b", "c"], lambda row: {"x": 1} if row["answer"] != "b" else {"c": 1})
    assert rows.column("__offset").to_pylist() == [0, 2]
    assert reasons(failed) == [
        (1, "TypeMismatch", "postprocess: returned the column 'c': the input or its folder has it too. "
                            "Return it under another name"),
    ]  # fmt: skip


def test_value_of_another_type_is_its_rows_failure_and_names_column_type_and_value() -> None:
    rows, failed = parse(["1", "a", "2", "3"], lambda row: {"x": int(row["answer"], 36)})
    assert failed.num_rows == 0
    values = {"1": [1], "2": "text", "3": 2.5}
    rows, failed = parse(["1", "2", "3", "3"], lambda row: {"x": values[row["answer"]]})
    assert rows.column("x").to_pylist() == [2.5, 2.5]
    end = "The first answers decide what postprocess's return annotation leaves open"
    assert reasons(failed) == [
        (0, "TypeMismatch", "postprocess: the column 'x' is double, and this row's value is [1]: double and "
                            f"list<item: int64> do not fit into one column. {end}"),
        (1, "TypeMismatch", "postprocess: the column 'x' is double, and this row's value is 'text': double "
                            f"and string do not fit into one column. {end}"),
    ]  # fmt: skip


FIXED = {
    "type": "object",
    "properties": {"industry": {"enum": ["A", "B"]}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["industry"],
}


def test_schema_may_be_columns_of_their_own() -> None:
    texts = ['{"industry": "A", "tags": ["x"]}', '{"tags": []}', '{"industry": "B"}']
    rows, failed = parse(texts, output_schema=FIXED, output_mode="columns")
    columns = rows.select(["industry", "tags"])
    assert columns.to_pylist() == [{"industry": "A", "tags": ["x"]}, {"industry": "B", "tags": None}]
    assert columns.schema.types == [pa.string(), pa.list_(pa.string())]
    assert "answer" not in rows.column_names
    assert reasons(failed) == [
        (1, "InvalidOutput", "the answer is not valid by output_schema: $: 'industry' is a required property"
         ": '{\"tags\": []}'"),
    ]  # fmt: skip


def test_schema_may_be_the_text_that_the_model_wrote() -> None:
    texts = ['{ "industry": "A", "tags": ["1.50"] }', '{"industry": "C"}', '{"industry": "A"']
    rows, failed = parse(texts, output_schema=FIXED, output_mode="json")
    assert rows.column("answer").to_pylist() == texts[:1]
    assert [r[:2] for r in reasons(failed)] == [(1, "InvalidOutput"), (2, "InvalidOutput")]


@pytest.mark.parametrize(("schema", "says"), [
    ({"type": "object"}, "leaves open which properties an answer has"),
    ({**FIXED, "additionalProperties": True}, "leaves open which properties an answer has"),
    ({**FIXED, "properties": {"__a": {"type": "string"}}, "required": []}, "the property '__a'"),
    ({**FIXED, "properties": {"a": {"type": "string"}, "A": {"type": "string"}}, "required": []},
     "the properties 'a' and 'A', which make two columns of one name"),
])  # fmt: skip
def test_schema_that_cannot_be_columns_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(SliceError, match=says):
        parse([], output_schema=schema, output_mode="columns")


@pytest.mark.parametrize("shape", [{"regex": "yes|no [a-z]+"}, {"grammar": 'root ::= "yes" | "no " [a-z]+'}])
def test_answer_of_a_regex_or_a_grammar_is_published_only_when_it_is_whole(shape: dict[str, str]) -> None:
    texts = ["yes", "no way", "no", "yes", "no way", "ye"]
    cut = ["stop", "stop", "stop", "length", "length", "length"]
    rows, failed = parse(texts, finish_reasons=cut, **shape)
    assert rows.column("__offset").to_pylist() == [0, 1, 3]  # nothing can follow "yes"
    assert rows.column("__truncated").to_pylist() == [0, 0, 0]
    assert [r[:2] for r in reasons(failed)] == [
        (2, "InvalidOutput"), (4, "TruncatedAnswer"), (5, "TruncatedAnswer"),
    ]  # fmt: skip
    assert reasons(failed)[1][2] == "the answer may not be whole (max_tokens cut it): 'no way'"
    parser = pickle.loads(pickle.dumps(TextParser(job_of(input_path="/i", output_path="/o", **shape), None)))
    rows, _ = parse(["no", "no way"], finish_reasons=["stop", "stop"], parser=parser)
    assert rows.column("answer").to_pylist() == ["no way"]


@pytest.mark.parametrize(("regex", "text"), [(r"a.b", "a\nb"), (r"\w+", "é"), (r"\W", "é"), (r"^ab$", "ab")])
def test_regex_is_read_as_any_of_vllms_backends_reads_it(regex: str, text: str) -> None:
    rows, _ = parse([text], regex=regex)
    assert rows.num_rows == 1


@pytest.mark.slow
def test_regex_that_takes_exponential_time_fails_its_row() -> None:
    _, failed = parse(["a" * 40 + "b"], regex="(a|aa)+$")
    assert reasons(failed)[0][2].startswith("the answer takes too long to match regex")


def test_grammar_that_cannot_be_read_here_is_left_to_the_engine() -> None:
    lark = '?start: sum\n?sum: /[0-9]+/ | sum "+" sum'
    rows, failed = parse(["1+2", "1+2"], finish_reasons=["stop", "length"], grammar=lark)
    assert (rows.num_rows, [r[1] for r in reasons(failed)]) == (1, ["TruncatedAnswer"])


def test_regex_that_is_not_valid_is_refused() -> None:
    with pytest.raises(SliceError, match=r"regex is '\(', which is not valid: missing \)"):
        parse([], regex="(")


@pytest.mark.parametrize(("shape", "says"), [
    # What llguidance cannot compile is asked of xgrammar, whose import takes seconds.
    pytest.param({"regex": r"(a)\1"}, "regex cannot be compiled by vLLM: .*xgrammar.*backreferences are not "
                 "supported", marks=pytest.mark.slow),
    pytest.param({"grammar": "root ::= ("}, "grammar cannot be compiled by vLLM: .*EBNF parser error",
                 marks=pytest.mark.slow),
    ({"regex": r"\p{L}"}, None),
    pytest.param({"output_schema": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
                 "output_schema cannot be compiled by vLLM: .*uniqueItems", marks=pytest.mark.slow),
    ({"output_schema": FIXED}, None),
    ({"choices": ["a\nb", "c"], "engine": "ray_data_llm"}, r"choices has 'a\\nb', and vLLM cannot"),
    ({"choices": ["a\nb", "c"], "engine": "vllm"}, None),
    ({"output_schema": {**FIXED, "not": {"required": ["tags"]}}}, None),
    ({"regex": r"(a)\1", "engine__kwargs": {"structured_outputs_config": {"backend": "outlines"}}}, None),
])  # fmt: skip
def test_shape_that_vllm_cannot_compile_is_refused_before_it_starts(
    shape: dict[str, Any], says: str | None
) -> None:
    job = job_of(input_path="/i", output_path="/o", **shape)
    if says is None:
        check_compiles(job)
    else:
        with pytest.raises(SliceError, match=says):
            check_compiles(job)
