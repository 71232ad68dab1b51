from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.http.bodies import RequestBodies, unwrap_choice
from airflow_provider_raydatallm.processor.request.output_schema import structured_outputs
from tests.support.in_process import job_of

MESSAGES = [{"role": "user", "content": "Who?"}]


def body_of(row_params: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    job = job_of(engine="http", endpoint_url="https://h/v1", input_path="in", output_path="out", **fields)
    params: dict[str, Any] = dict(job.sampling_params)
    if (shape := structured_outputs(job)) is not None:
        params["structured_outputs"] = shape
    request = {"messages": MESSAGES, "sampling_params": params | (row_params or {}), "cells": [[]]}
    [encoded] = RequestBodies(job)([json.dumps(request)])
    assert encoded.error is None
    body: dict[str, Any] = json.loads(encoded.params)
    return body


def test_body_has_the_parameters_as_they_are_and_what_they_cannot_change() -> None:
    params = {"temperature": 0, "max_tokens": 5, "min_p": 0.1}
    body = body_of({"model": "another", "stream": True}, sampling_params=params)
    assert body == {**params, "messages": MESSAGES, "model": "m/m", "stream": False}
    assert body_of(chat_template_kwargs={"enable_thinking": False})["chat_template_kwargs"] == {
        "enable_thinking": False
    }


def test_schema_is_strict_where_openai_can_enforce_it() -> None:
    properties = {"a": {"type": "string"}}
    open_schema = {"type": "object", "properties": properties, "required": ["a"]}
    for schema, strict in ((open_schema, False), ({**open_schema, "additionalProperties": False}, True)):
        form = body_of(output_schema=schema)["response_format"]
        assert form == {
            "type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}
        }  # fmt: skip


def test_choices_are_an_enum_in_an_object() -> None:
    body = body_of(choices=["Law Firm", "Other"])
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["enum"] == ["Law Firm", "Other"]
    assert body["response_format"]["json_schema"]["strict"]
    assert "structured_outputs" not in body


def test_shape_of_a_vllm_server_is_passed_on() -> None:
    shape = {"regex": "[ab]"}
    assert body_of(sampling_params={"structured_outputs": shape})["structured_outputs"] == shape


@pytest.mark.parametrize(
    ("text", "choice"),
    [('{"answer": "Law Firm"}', "Law Firm"), ("Law Firm", "Law Firm"), ('{"answer": 3}', '{"answer": 3}'),
     ('{"answer": "Law', '{"answer": "Law'), ("[1]", "[1]"), ("[" * 10**5, "[" * 10**5)],
)  # fmt: skip
def test_choice_is_taken_out_of_its_object(text: str, choice: str) -> None:
    assert unwrap_choice(text) == choice


def test_request_that_no_body_can_hold_fails_its_row_only() -> None:
    job = job_of(
        engine="http", endpoint_url="https://h", input_path="in", output_path="out", choices=["a", "b"]
    )
    broken = {"messages": MESSAGES, "sampling_params": {"structured_outputs": None}}
    good = {"messages": MESSAGES, "sampling_params": {"structured_outputs": {"choice": ["a", "b"]}}}
    first, second = RequestBodies(job)([json.dumps(broken), json.dumps(good)])
    assert isinstance(first.error, TypeError)
    assert second.error is None
