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
    read_reply,
)


def reply(**message: Any) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    return json.dumps({"choices": [{"message": message, "finish_reason": "length"}], "usage": usage}).encode()


def error(message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def test_answer_has_its_tokens_and_why_it_ended() -> None:
    assert read_reply(200, {}, reply(content="Hi")) == Completion("Hi", "length", None, 7, 3, 2)
    bare = b'{"choices": [{"message": {"content": ""}}], "usage": {"prompt_tokens": "x"}}'
    assert read_reply(200, {}, bare) == Completion("", None, None, None, None, None)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [7]}', b"[" * 10**6]
)
def test_broken_reply_is_asked_for_again_and_may_have_cost(body: bytes) -> None:
    with pytest.raises(PassingError, match="not a chat completion") as caught:
        read_reply(200, {}, body)
    assert (caught.value.may_have_cost, caught.value.is_limit) == (True, False)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_answer_that_its_server_did_not_finish_is_asked_for_again(reason: str) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Par"}, "finish_reason": reason}]}).encode()
    with pytest.raises(PassingError, match=f"did not finish its answer .*{reason}") as caught:
        read_reply(200, {}, body)
    assert caught.value.may_have_cost


@pytest.mark.parametrize(
    "usage", ["none", {"prompt_tokens": 10**30}, {"completion_tokens": True, "prompt_tokens_details": "x"}]
)
def test_tokens_that_cannot_be_are_not_counted(usage: Any) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Hi"}}], "usage": usage}).encode()
    assert read_reply(200, {}, body) == Completion("Hi", None, None, None, None, None)


def test_secret_is_redacted_before_a_message_is_cut() -> None:
    key, redact = "sk-0123456789", lambda text: text.replace("sk-0123456789", "***")
    for status, kind in ((400, RowRefusedError), (401, SliceError), (500, PassingError), (200, PassingError)):
        for body in (error("x" * 490 + key), (" " * 490 + key).encode()):
            with pytest.raises(kind) as caught:
                read_reply(status, {}, body, redact)
            assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_row_says_why(status: int) -> None:
    with pytest.raises(RowRefusedError, match=f"{status}: maximum context length"):
        read_reply(status, {}, error("maximum context length is 5"))


def test_answer_may_lack_its_text_and_costs_all_the_same() -> None:
    refused = Completion(None, "length", "I cannot", 7, 3, 2)
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
