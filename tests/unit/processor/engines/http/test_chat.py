from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.http.chat import ChatApi, unwrap_choice
from airflow_provider_raydatallm.processor.engines.http.replies import PassingError
from airflow_provider_raydatallm.processor.request.answers.output_schema import structured_outputs
from tests.support.in_process import job_of

TOOL = {"type": "function", "function": {"name": "f"}}
MESSAGES = [{"role": "user", "content": "Who?"}]


def api(**fields: Any) -> ChatApi:
    return ChatApi(
        job_of(engine="http", engine__url="https://h/v1", input_path="in", output_path="out", **fields)
    )


def reply(**message: Any) -> bytes:
    usage = {
        "prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }  # fmt: skip
    return json.dumps({"choices": [{"message": message, "finish_reason": "length"}], "usage": usage}).encode()


def body_of(row_params: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    chat = api(**fields)
    job = chat.job
    params: dict[str, Any] = dict(job.task.sampling)
    if (shape := structured_outputs(job)) is not None:
        params["structured_outputs"] = shape
    request = {"messages": MESSAGES, "sampling_params": params | (row_params or {}), "cells": [[]]}
    [encoded] = chat([json.dumps(request)])
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
    assert body_of(tools=[TOOL])["tools"] == [TOOL]


@pytest.mark.parametrize(
    ("params", "tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "n": 4}, 20),
        ({"max_completion_tokens": 7}, 7),
        ({"n": 4}, 0),
    ],
)
def test_request_says_how_many_tokens_all_of_its_texts_may_take(params: dict[str, Any], tokens: int) -> None:
    [request] = api()([json.dumps({"messages": MESSAGES, "sampling_params": params})])
    assert request.total_tokens == tokens


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
    chat = api(choices=["a", "b"])
    broken = {"messages": MESSAGES, "sampling_params": {"structured_outputs": None}}
    good = {"messages": MESSAGES, "sampling_params": {"structured_outputs": {"choice": ["a", "b"]}}}
    first, second = chat([json.dumps(broken), json.dumps(good)])
    assert isinstance(first.error, TypeError)
    assert second.error is None


def test_answer_has_its_tokens_and_why_it_ended() -> None:
    tokens = {"input_tokens": 7, "output_tokens": 3, "cached_tokens": 2, "reasoning_tokens": 1}
    answer = api().read(reply(content="Hi"))
    assert answer | {"text": "Hi", "finish_reason": "length", **tokens} == answer
    bare = api().read(b'{"choices": [{"message": {"content": ""}}], "usage": {"prompt_tokens": "x"}}')
    assert bare | {"text": "", "finish_reason": None, **dict.fromkeys(tokens)} == bare
    assert api(choices=["a", "b"]).read(reply(content='{"answer": "b"}'))["text"] == "b"


def test_answer_may_be_several_texts_with_their_probabilities() -> None:
    tokens = [{"token": "H", "logprob": -0.5}, {"token": "i", "logprob": -1}]
    choices = [
        {"message": {"content": "Hi"}, "finish_reason": "stop", "logprobs": {"content": tokens}},
        {"message": {"content": "Ho"}, "finish_reason": "stop", "logprobs": None},
    ]
    several = api().read(json.dumps({"choices": choices}).encode(), b'{"n": 2}')
    one = api().read(json.dumps({"choices": choices[:1]}).encode())
    assert (one["text"], one["logprob"], one["logprob_tokens"]) == ("Hi", -1.5, 2)
    assert [text["text"] for text in several["texts"]] == ["Hi", "Ho"]


def test_several_texts_are_in_their_order_and_all_there() -> None:
    choices = [{"index": i, "message": {"content": text}} for i, text in ((2, "c"), (0, "a"), (1, "b"))]
    reply = json.dumps({"choices": choices}).encode()
    whole = api().read(reply, b'{"n": 3}')
    assert [text["text"] for text in whole["texts"]] == ["a", "b", "c"]
    assert api().read(reply)["text"] == "a"
    short = api().read(reply, b'{"n": 4}')
    assert (short["error_type"], "3 of 4" in short["error"]) == ("RefusedByEndpoint", True)


def test_calls_of_tools_are_the_answer() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    body = reply(content=None, tool_calls=calls)
    asked = json.dumps({"tools": [TOOL]}).encode()
    assert json.loads(api().read(body, asked)["text"]) == calls
    assert api().read(reply(content="Hi", tool_calls=[]))["text"] == "Hi"
    unasked = api().read(body)
    assert (unasked["error_type"], "called tools" in unasked["error"]) == ("RefusedByEndpoint", True)


def ended(reason: Any, content: Any = "Par", **choice: Any) -> bytes:
    one = {"message": {"content": content}, "finish_reason": reason, **choice}
    return json.dumps({"choices": [one]}).encode()


@pytest.mark.parametrize(
    ("reason", "published"),
    [("stop", "stop"), ("STOP", "STOP"), ("eos", "eos"), ("end_turn", "end_turn"), (None, None),
     ("length", "length"), ("max_tokens", "length"), ("MAX_TOKENS", "length"), ("model_length", "length"),
     ("time_limit", "length"), ("repetition", "length"), ("new\udfff", "length")],
)  # fmt: skip
def test_answer_that_was_cut_for_whatever_reason_is_cut(reason: str | None, published: str | None) -> None:
    answer = api().read(ended(reason))
    assert (answer["text"], answer["finish_reason"]) == ("Par", published)


@pytest.mark.parametrize("reason", ["content_filter", "SAFETY", "guardrail_intervened", "refusal"])
def test_filtered_answer_is_none(reason: str) -> None:
    assert api().read(ended(reason))["error_type"] == "RefusedByEndpoint"


@pytest.mark.parametrize(
    ("content", "text"),
    [([{"type": "text", "text": "Par"}, {"type": "text", "text": "is"}], "Paris"),
     ([{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "Hi"}], "Hi"),
     ([{"type": "output_text", "text": ""}], "")],
)  # fmt: skip
def test_texts_of_parts_are_joined(content: Any, text: str) -> None:
    assert api().read(ended("stop", content))["text"] == text


@pytest.mark.parametrize(
    "message",
    [{"content": None}, {"content": []}, {"content": 7}, {"content": "", "reasoning_content": "hm"},
     {"content": None, "reasoning": "hm"}, {"content": "no", "refusal": "I cannot"},
     {"content": [{"type": "refusal", "refusal": "I cannot"}]},
     {"content": [{"type": "thinking", "thinking": "hm"}]}, {}],
)  # fmt: skip
def test_reply_without_an_answer_is_refused(message: dict[str, Any]) -> None:
    refused = api().read(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    assert refused["error_type"] == "RefusedByEndpoint"


def test_answer_may_be_empty_or_follow_thoughts() -> None:
    assert api().read(ended("stop", ""))["text"] == ""
    thought = {"message": {"content": "Hi", "reasoning_content": "hm"}, "finish_reason": "stop"}
    assert api().read(json.dumps({"choices": [thought]}).encode())["text"] == "Hi"


@pytest.mark.parametrize(
    "logprobs",
    [f'[{{"logprob": {n}}}]' for n in ("1" * 401, "NaN", "Infinity", "-1e400", '"-1"', "true", "[]", "{}")]
    + ['[{"logprob": -1e308}, {"logprob": -1e308}]', "[7]", '"x"', '{"a": 1}', "[{}]", "7", "[null]"],
)  # fmt: skip
def test_logprobs_that_are_no_numbers_cost_their_row_only(logprobs: str) -> None:
    body = ended("stop", logprobs={"content": "HERE"}).replace(b'"HERE"', logprobs.encode())
    refused = api().read(body)
    assert (refused["error_type"], "logprobs" in refused["error"]) == ("RefusedByEndpoint", True)


@pytest.mark.parametrize("logprobs", [None, 7, "x", [], {"content": None}, {"content": []}])
def test_logprobs_may_be_missing(logprobs: Any) -> None:
    answer = api().read(ended("stop", logprobs=logprobs))
    assert (answer["text"], answer["logprob"], answer["logprob_tokens"]) == ("Par", None, None)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_answer_that_its_server_did_not_finish_is_asked_for_again(reason: str) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Par"}, "finish_reason": reason}]}).encode()
    with pytest.raises(PassingError, match=f"did not finish its answer .*{reason}") as caught:
        api().read(body)
    assert caught.value.may_have_cost


@pytest.mark.parametrize(
    "usage", ["none", {"prompt_tokens": 10**30}, {"completion_tokens": True, "prompt_tokens_details": "x"}]
)
def test_tokens_that_cannot_be_are_not_counted(usage: Any) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Hi"}}], "usage": usage}).encode()
    answer = api().read(body)
    assert [answer[f"{kind}_tokens"] for kind in ("input", "output", "cached", "reasoning")] == [None] * 4


def test_answer_without_text_is_refused_and_costs_all_the_same() -> None:
    body = reply(content=None, refusal="I cannot").replace(b"length", b"stop")
    refused = api().read(body)
    assert (refused["error_type"], refused["output_tokens"]) == ("RefusedByEndpoint", 3)
    assert "I cannot" in refused["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [7]}', b"[" * 10**6, b'{"choices": 7}',
     b'{"choices": {"a": 1}}', b'{"choices": [{}]}', b'{"choices": [{"message": "x"}]}', b"1" * 5000, b"NaN",
     b'{"choices": [{"message": {"content": [7]}}]}', '{"choices": "\u00e9"}'.encode("latin-1")],
)  # fmt: skip
def test_broken_reply_is_asked_for_again_and_may_have_cost(body: bytes) -> None:
    with pytest.raises(PassingError, match="not a chat completion") as caught:
        api().read(body)
    assert (caught.value.may_have_cost, caught.value.is_limit) == (True, False)


def test_other_text_has_the_same_parameters_and_a_short_answer() -> None:
    params = {"temperature": 0, "max_tokens": 500, "structured_outputs": {"choice": ["a", "b"]}}
    messages = [{"role": "system", "content": "S"}, *MESSAGES]
    chat = api(choices=["a", "b"])
    [asked] = chat([json.dumps({"messages": messages, "sampling_params": params})])
    other = json.loads(chat.with_text(asked.params, "Hello"))
    hello = [{"role": "user", "content": "Hello"}]
    assert other == {**json.loads(asked.params), "messages": hello, "max_tokens": 16}
    plain = json.loads(chat.plain(asked.params, "Hello"))
    assert plain == {"model": other["model"], "messages": hello, "max_tokens": 500}
