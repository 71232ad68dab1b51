"""A schema of answers brings all that it needs with it."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.spec.json_schema import is_closed
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from tests.support.slice_jobs import slice_job


@pytest.mark.parametrize("schema", [{"industry": "string"}, {"a": {"type": "string"}, "b": "integer"}])
def test_properties_alone_are_no_schema(schema: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="are no keywords of a JSON schema"):
        slice_job(output_schema=schema)


@pytest.mark.parametrize("schema", [{}, {"title": "any"}, {"$defs": {"a": {}}}, {"type": "string"}])
def test_schema_may_leave_answers_open(schema: dict[str, Any]) -> None:
    assert slice_job(output_schema=schema).task_as(Generate).output_schema == schema


@pytest.mark.parametrize(("part", "message"), [
    ({"$ref": "http://169.254.169.254/schema.json"}, "169.254.169.254"),
    ({"$ref": "file:///etc/passwd"}, "nothing is fetched"), ({"$ref": "other.json#/$defs/A"}, "other.json"),
    ({"$dynamicRef": "http://a/b"}, "dynamicRef is 'http://a/b'"),
    ({"$recursiveRef": "http://a/b"}, "http://a/b"),
    ({"$ref": "#/$defs/Missing"}, "which is not in the schema"),
    ({"$schema": "http://evil/draft"}, "dialect that is not known"),
])  # fmt: skip
@pytest.mark.parametrize("wrap", [
    lambda part: part, lambda part: {"type": "object", "properties": {"a": part}},
    lambda part: {"anyOf": [{"type": "null"}, {"items": part}]}, lambda part: {"$defs": {"const": part}},
    lambda part: {"properties": {"default": part, "enum": {}}},
])  # fmt: skip
def test_schema_that_refers_to_something_else_is_refused(
    part: dict[str, Any], message: str, wrap: Any
) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        slice_job(output_schema=wrap(part))


class Inner(pydantic.BaseModel):
    n: int


class Outer(pydantic.BaseModel):
    inner: Inner
    more: list[Inner] = []


@pytest.mark.parametrize("schema", [
    Outer.model_json_schema(), {"$ref": "#"}, {"$defs": {"a/b": {}}, "$ref": "#/$defs/a~1b"},
    {"properties": {"$ref": {"type": "string"}, "$schema": {"type": "integer"}}},
    {"enum": [{"$ref": "http://a/b"}], "default": {"$schema": "x"}},
    {"$anchor": "here", "items": {"$ref": "#here"}},
    {"$schema": "https://json-schema.org/draft/2020-12/schema"},
    {"$schema": "http://json-schema.org/draft-07/schema#"},
])  # fmt: skip
def test_schema_that_refers_to_itself_only_is_fine(schema: dict[str, Any]) -> None:
    assert slice_job(output_schema=schema).task_as(Generate).output_schema == schema


TEXT = {"type": "string"}


@pytest.mark.parametrize("part", [
    TEXT, {"type": ["integer", "null"]}, {"enum": [1, "a"]}, {"const": 3}, {"$ref": "#/$defs/a"},
    {"anyOf": [TEXT, {"type": "null"}]}, {"type": "array", "items": TEXT},
    {"type": "object", "properties": {"b": TEXT}, "additionalProperties": False},
])  # fmt: skip
def test_schema_is_closed(part: dict[str, Any]) -> None:
    assert is_closed({"type": "object", "properties": {"a": part}, "$defs": {"a": TEXT}})


@pytest.mark.parametrize("part", [
    {}, True, {"type": "object"}, {"type": "array"}, {"description": "anything"}, {"anyOf": [TEXT, {}]},
    {"type": "object", "properties": {"b": TEXT}, "additionalProperties": TEXT}, {"allOf": [TEXT]},
    {"type": "object", "patternProperties": {"^a": TEXT}}, {"type": "array", "items": {"type": "object"}},
])  # fmt: skip
def test_schema_leaves_something_open(part: Any) -> None:
    assert not is_closed({"type": "object", "properties": {"a": part}})
