from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.request.output_schema import arrow_type, structured_outputs
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
