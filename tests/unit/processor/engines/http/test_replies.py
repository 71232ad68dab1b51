from __future__ import annotations

import email.utils
import json
import time
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.http.replies import (
    Completion,
    PassingError,
    RowRefusedError,
    Text,
    read_reply,
)


def reply(**message: Any) -> bytes:
    usage = {
        "prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }  # fmt: skip
    return json.dumps({"choices": [{"message": message, "finish_reason": "length"}], "usage": usage}).encode()


def error(message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def test_answer_has_its_tokens_and_why_it_ended() -> None:
    answer = Completion((Text("Hi", "length", None),), 7, 3, 2, 1)
    assert read_reply(200, {}, reply(content="Hi")) == answer
    bare = b'{"choices": [{"message": {"content": ""}}], "usage": {"prompt_tokens": "x"}}'
    assert read_reply(200, {}, bare) == Completion((Text("", None, None),), None, None, None, None)


def test_answer_may_be_several_texts_with_their_probabilities() -> None:
    tokens = [{"token": "H", "logprob": -0.5}, {"token": "i", "logprob": -1}]
    choices = [
        {"message": {"content": "Hi"}, "finish_reason": "stop", "logprobs": {"content": tokens}},
        {"message": {"content": "Ho"}, "finish_reason": "stop", "logprobs": None},
    ]
    reply = read_reply(200, {}, json.dumps({"choices": choices}).encode())
    assert reply.texts == (Text("Hi", "stop", None, -1.5, 2), Text("Ho", "stop", None))


def test_calls_of_tools_are_the_answer() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    [text] = read_reply(200, {}, reply(content=None, tool_calls=calls)).texts
    assert json.loads(text.text or "") == calls
    assert read_reply(200, {}, reply(content="Hi", tool_calls=[])).texts[0].text == "Hi"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [7]}', b"[" * 10**6]
)
def test_broken_reply_is_asked_for_again_and_may_have_cost(body: bytes) -> None:
    with pytest.raises(PassingError, match="not a chat completion") as caught:
        read_reply(200, {}, body)
    assert (caught.value.may_have_cost, caught.value.is_limit) == (True, False)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_row_says_why(status: int) -> None:
    with pytest.raises(RowRefusedError, match=f"{status}: maximum context length"):
        read_reply(status, {}, error("maximum context length is 5"))


def test_answer_may_lack_its_text_and_costs_all_the_same() -> None:
    refused = Completion((Text(None, "length", "I cannot"),), 7, 3, 2, 1)
    assert read_reply(200, {}, reply(content=None, refusal="I cannot")) == refused


@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [(401, "input", "model_conn_id"), (402, "input", "credit"), (403, "input", "rights of the key"),
     (404, "model", "model_source and engine.url"), (405, "input", "engine.url")],
)  # fmt: skip
def test_what_no_row_can_pass_ends_the_slice_and_says_what_to_check(
    status: int, kind: str, advice: str
) -> None:
    with pytest.raises(SliceError, match=advice) as caught:
        read_reply(status, {}, error("no"))
    assert caught.value.kind == kind


def test_account_without_credit_is_no_limit_that_passes() -> None:
    with pytest.raises(SliceError, match="credit"):
        read_reply(429, {}, error("You exceeded your quota", code="insufficient_quota"))


def test_redirect_is_not_followed() -> None:
    with pytest.raises(SliceError, match=r"https://evil\.example/v1"):
        read_reply(307, {"Location": "https://evil.example/v1"}, b"")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("1.5", 1.5), ("-3", 0.0), ("1e9", 600.0), ("nan", None), ("soon", None), (None, None)],
)
def test_endpoint_says_how_long_to_wait(value: str | None, seconds: float | None) -> None:
    with pytest.raises(PassingError) as caught:
        read_reply(429, {} if value is None else {"Retry-After": value}, b"")
    assert (caught.value.pause_s, caught.value.is_limit) == (seconds, True)


def test_endpoint_may_name_the_time() -> None:
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    with pytest.raises(PassingError) as caught:
        read_reply(503, {"Retry-After": date}, b"")
    assert caught.value.pause_s == pytest.approx(30, abs=2)
    assert not caught.value.is_limit
