from __future__ import annotations

import json
import pickle
import time
import urllib.request
from typing import Any

import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.request.answers.output_schema import (
    AnswerSchema,
    InvalidOutput,
    arrow_type,
    structured_outputs,
)
from tests.support.in_process import job_of


@pytest.mark.parametrize(
    ("shape", "parameter"),
    [
        ({}, None), ({"choices": ("a", "b")}, {"choice": ["a", "b"]}), ({"regex": "a+"}, {"regex": "a+"}),
        ({"output_schema": {"type": "object"}}, {"json": '{"type": "object"}'}),
    ],
)  # fmt: skip
def test_shapes_become_vllms_structured_outputs(shape: dict[str, Any], parameter: Any) -> None:
    assert structured_outputs(job_of(input_path="/i", output_path="/o", **shape)) == parameter


TEXT = {"type": "string"}
OPEN: list[tuple[dict[str, Any], Any]] = [
    ({}, {"a": [1, None]}), ({"type": "object"}, {"a": 1}), ({"type": "object", "properties": {}}, {"a": 1}),
    ({"type": "array", "items": TEXT}, ["a", "b"]), ({"type": "array"}, [1, {"b": 2}]), (TEXT, "a"),
    ({"type": "integer"}, 3), ({"type": "null"}, None),
    ({"type": ["object", "null"], "properties": {"a": TEXT}}, None),
    ({"anyOf": [{"type": "object", "properties": {"a": TEXT}}, {"type": "null"}]}, None),
    ({"$ref": "#/$defs/A",
      "$defs": {"A": {"anyOf": [{"type": "object", "properties": {"a": TEXT}}, {"type": "null"}]}}}, None),
    ({"type": "object", "properties": {"a": {"anyOf": [TEXT, {"type": "integer"}]}}}, {"a": 1}),
    ({"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT}, {"a": "b", "c": "d"}),
    ({"type": "object", "properties": {"a": TEXT}, "additionalProperties": True}, {"c": [1]}),
    ({"type": "object", "properties": {"a": TEXT}, "additionalProperties": {}}, {"c": 1}),
    ({"type": "object", "properties": {"a": TEXT}, "patternProperties": {"^x": {}},
      "additionalProperties": False}, {"x1": 1}),
    ({"type": "object", "properties": {"a": TEXT}, "allOf": [{"properties": {"b": TEXT}}]}, {"b": "c"}),
    ({"type": "object", "properties": {"a": True}}, {"a": {"b": 1}}),
    ({"type": "object", "properties": {"a": {}}}, {"a": 1}),
    ({"type": "object", "properties": {"a": {"type": "array"}}}, {"a": [1]}),
    ({"type": "object",
      "properties": {"a": {"type": "array", "prefixItems": [TEXT], "items": {"type": "integer"}}}},
     {"a": ["b", 1]}),
    ({"type": "object", "properties": {"a": {"enum": [1, "b", None]}}}, {"a": 1}),
    ({"type": "object", "properties": {"a": {"const": 3}}}, {"a": 3}),
    ({"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}}},
     {"next": {"next": {}}}),
    ({"oneOf": [{"type": "object", "properties": {"a": TEXT}}, TEXT]}, {"a": "b"}),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/A", "properties": {"b": TEXT}}},
      "$defs": {"A": {"type": "object", "properties": {"c": TEXT}}}}, {"a": {"b": "x", "c": "y"}}),
    ({"properties": {"a": TEXT}}, {"a": "b"}), ({"type": ["string", "integer"]}, 3),
    ({"type": "object",
      "properties": {"a": {"type": "object", "properties": {"b": TEXT}, "if": {}, "then": {}}}},
     {"a": {"b": "c"}}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), OPEN)
def test_schema_that_leaves_something_open_is_published_as_json_text(
    schema: dict[str, Any], value: Any
) -> None:
    answers = AnswerSchema(schema)
    assert answers.type == pa.string()
    text = json.dumps(value, indent=1)
    assert answers.parse(text) == text


class Inner(pydantic.BaseModel):
    n: int
    note: str | None = None


class Outer(pydantic.BaseModel):
    inner: Inner
    others: list[Inner] = []


CLOSED: list[tuple[dict[str, Any], str, Any]] = [
    ({"type": "object", "properties": {"a": TEXT}}, '{"a": "x"}', {"a": "x"}),
    ({"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}, "{}", {}),
    ({"type": "object", "properties": {"a": {"enum": ["x", None]}}}, '{"a": null}', {"a": None}),
    ({"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}, '{"a": 1.0}', {"a": 1}),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": 9223372036854775807}',
     {"a": 2**63 - 1}),
    ({"type": "object", "properties": {"a": {"type": "number"}}}, '{"a": -0.0}', {"a": -0.0}),
    ({"type": "object", "properties": {"a": {"type": "number"}}}, '{"a": 3}', {"a": 3.0}),
    (Outer.model_json_schema(), '{"inner": {"n": 1}, "others": [{"n": 2, "note": "x"}]}',
     {"inner": {"n": 1}, "others": [{"n": 2, "note": "x"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "text", "value"), CLOSED)
def test_schema_that_fixes_every_field_is_published_as_a_struct(
    schema: dict[str, Any], text: str, value: Any
) -> None:
    answers = pickle.loads(pickle.dumps(AnswerSchema(schema)))
    parsed = answers.parse(text)
    assert repr(parsed) == repr(value)
    [published] = pa.array([parsed], answers.type).to_pylist()
    assert same(value, published)


@pytest.mark.parametrize(("kind", "text", "why"), [
    ("integer", "9223372036854775808", "an integer of more than 64 bits in 'a'"),
    ("integer", "1e30", "64 bits"), ("integer", "9007199254740993.0", "written as a float"),
    ("number", "1e400", "that a 64-bit float cannot hold"),
    ("number", "9007199254740993", "64-bit float"), ("number", "NaN", "not valid"),
    ("number", "Infinity", "not valid"), ("string", r'"\ud800"', "not valid Unicode"),
    ("string", '"x", "a": "y"', "not valid"),
    ("string", '"x", "b": "y"', "has 'b', which output_schema does not name"),
    ("integer", "1" * 5000, "not valid"), ("string", "[" * 100_000, "not valid"),
])  # fmt: skip
def test_answer_that_a_struct_would_change_is_invalid_and_says_why(kind: str, text: str, why: str) -> None:
    answers = AnswerSchema({"type": "object", "properties": {"a": {"type": kind}}})
    with pytest.raises(InvalidOutput, match=why):
        answers.parse(f'{{"a": {text}}}')


def test_key_that_a_nested_struct_would_drop_is_named_with_its_path() -> None:
    with pytest.raises(InvalidOutput, match=r"has 'others.\[\].color'"):
        AnswerSchema(Outer.model_json_schema()).parse('{"inner": {"n": 1}, "others": [{"n": 2, "color": 1}]}')


SLOW = "^(a|a)*$"


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "text"), [
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}, '{"a": "TEXT"}'),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": SLOW}}}, '{"a": "TEXT"}'),
    ({"type": "object", "patternProperties": {SLOW: {}}, "additionalProperties": False}, '{"TEXT": 1}'),
    ({"type": "array", "items": {"pattern": SLOW}}, '["TEXT", "TEXT", "TEXT"]'),
])  # fmt: skip
def test_pattern_that_backtracks_costs_its_row_and_little_time(schema: dict[str, Any], text: str) -> None:
    answers = AnswerSchema(schema)
    hostile = text.replace("TEXT", "a" * 40 + "!")
    started = time.process_time()
    for _ in range(20):
        with pytest.raises(InvalidOutput):
            answers.parse(hostile)
    assert time.process_time() - started < 6  # ten without the halved limits
    fine = text.replace("TEXT", "a" * 40)
    assert answers.parse(fine) in (fine, json.loads(fine))


def test_invalid_schemas_and_patterns_are_refused_before_anything_is_paid_for() -> None:
    for schema, why in (
        ({"type": "objekt"}, "not a valid JSON schema"), ({"pattern": "("}, r"has the pattern '\('"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "not supported"),
    ):  # fmt: skip
        with pytest.raises(SliceError, match=why):
            AnswerSchema(schema)


def test_nothing_is_fetched_for_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr(urllib.request, "urlopen", fetched.append)
    schema = {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        AnswerSchema(schema).parse('{"a": 1}')
    assert fetched == []


names = st.sampled_from("abc")
closed = st.recursive(
    st.sampled_from([TEXT, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {},
                     {"type": ["string", "null"]}, {"type": "array"}, {"enum": ["x", None]}]),
    lambda inner: st.builds(lambda items: {"type": "array", "items": items}, inner)
    | st.builds(
        lambda fields, more: {"type": "object", "properties": fields} | more,
        st.dictionaries(names, inner, max_size=3),
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": True}]),
    ),
    max_leaves=4,
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=2) | st.just("x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=5,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether a published value is the answer's: the same numbers, and null only where there is none."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(k), v) for k, v in other.items()) and one.keys() <= other.keys()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other and isinstance(one, bool) == isinstance(other, bool))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(closed, json_values)
def test_published_answer_is_the_answer_or_invalid(schema: dict[str, Any], value: Any) -> None:
    answers = AnswerSchema(schema)
    text = json.dumps(value)
    try:
        parsed = answers.parse(text)
    except InvalidOutput:
        return
    [published] = pa.array([parsed], answers.type).to_pylist()
    assert same(value, json.loads(published) if answers.type == pa.string() else published)


def test_nested_models_have_an_arrow_type() -> None:
    inner = pa.struct([("n", pa.int64()), ("note", pa.string())])
    assert arrow_type(Outer.model_json_schema()) == pa.struct([("inner", inner), ("others", pa.list_(inner))])


@pytest.mark.parametrize("mode", ["struct", "json", "columns"])
@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}]
)
def test_schema_that_is_a_circle_is_refused(schema: dict[str, Any], mode: Any) -> None:
    with pytest.raises(SliceError, match="leads back to itself"):
        AnswerSchema(schema, mode)
