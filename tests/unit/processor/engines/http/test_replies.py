from __future__ import annotations

import email.utils
import json
import time
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.http.replies import (
    DoubtfulRefusalError,
    PassingError,
    RowRefusedError,
    broken_reply,
    raise_error_within,
    raise_unless_answered,
)


def error(message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def test_answer_is_none_of_its_matters() -> None:
    raise_unless_answered(200, {}, b"whatever")


def test_secret_is_redacted_before_a_message_is_cut() -> None:
    key, redact = "sk-0123456789", lambda text: text.replace("sk-0123456789", "***")
    for status, kind in ((400, RowRefusedError), (401, DoubtfulRefusalError), (500, PassingError)):
        for body in (error("x" * 490 + key), (" " * 490 + key).encode()):
            with pytest.raises(kind) as caught:
                raise_unless_answered(status, {}, body, redact)
            assert "sk-" not in f"{caught.value} {getattr(caught.value, 'of_all', '')}"
            assert "sk-" not in str(broken_reply(body, "is broken", redact))


@pytest.mark.parametrize(("body", "kind"), [
    (b"", "input"), (b"404: Not Found", "input"), (b'{"detail":"Not Found"}', "input"), (b"[]", "input"),
    (error("the model x does not exist"), "model"), (b'{"object":"error","message":"no x"}', "model"),
])  # fmt: skip
def test_other_service_at_the_address_is_no_missing_model(body: bytes, kind: str) -> None:
    with pytest.raises(DoubtfulRefusalError) as caught:
        raise_unless_answered(404, {}, body, url="http://head:8265/chat/completions")
    failure = caught.value.of_all.failure
    assert failure.sentence == "the endpoint answered 404 at http://head:8265/chat/completions"
    assert (failure.kind, "such as /v1" in failure.advice[0]) == (kind, kind == "input")


@pytest.mark.parametrize("status", [400, 401, 405, 500])
def test_status_without_a_body_stands_alone(status: int) -> None:
    with pytest.raises(Exception, match=f"^the endpoint answered {status}$"):
        raise_unless_answered(status, {}, b"")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_row_says_why(status: int) -> None:
    with pytest.raises(RowRefusedError, match=f"{status}: maximum context length"):
        raise_unless_answered(status, {}, error("maximum context length is 5"))


@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [(401, "input", "model_conn_id"), (402, "input", "credit"), (501, "input", "such as /v1"),
     (404, "model", "model_source and engine.url")],
)  # fmt: skip
def test_what_no_row_can_pass_ends_the_slice_and_says_what_to_check(
    status: int, kind: str, advice: str
) -> None:
    with pytest.raises(DoubtfulRefusalError) as caught:
        raise_unless_answered(status, {}, error("no"))
    of_all = caught.value.of_all
    assert (caught.value.is_sudden, of_all.kind, advice in str(of_all)) == (True, kind, True)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(403, "rights of the key"), (405, "engine.url"), (424, "depends on"), (451, "not offered here"),
     (499, "engine.url")],
)  # fmt: skip
def test_refusal_that_may_be_of_one_row_says_what_to_check_if_it_is_of_all(status: int, advice: str) -> None:
    with pytest.raises(DoubtfulRefusalError, match=f"{status}: flagged") as caught:
        raise_unless_answered(status, {}, error("flagged"))
    of_all = caught.value.of_all
    assert (caught.value.is_sudden, of_all.kind, advice in str(of_all)) == (False, "input", True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, RowRefusedError), ("422", RowRefusedError), (401, DoubtfulRefusalError),
     (403, DoubtfulRefusalError),
     (429, PassingError), (None, PassingError), ("server_error", PassingError), (True, PassingError),
     (10**400, PassingError), ([], PassingError)],
)  # fmt: skip
def test_error_with_a_status_of_success_is_an_error(code: Any, kind: type[Exception]) -> None:
    reply = {"error": {"message": "no", "code": code}}
    with pytest.raises(kind, match="no"):
        raise_error_within(reply, json.dumps(reply).encode(), str)


@pytest.mark.parametrize("reply", [{"error": None}, {"error": ""}, [], 7, {}])
def test_reply_without_an_error_is_left_to_who_reads_it(reply: Any) -> None:
    raise_error_within(reply, b"", str)


def test_account_without_credit_is_no_limit_that_passes() -> None:
    with pytest.raises(DoubtfulRefusalError) as caught:
        raise_unless_answered(429, {}, error("You exceeded your quota", code="insufficient_quota"))
    assert (caught.value.is_sudden, "credit" in str(caught.value.of_all)) == (True, True)


def test_redirect_is_not_followed() -> None:
    with pytest.raises(DoubtfulRefusalError, match=r"https://evil\.example/v1") as caught:
        raise_unless_answered(307, {"Location": "https://evil.example/v1"}, b"")
    assert caught.value.is_sudden


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("1.5", 1.5), ("-3", 0.0), ("1e9", 600.0), ("nan", None), ("soon", None), (None, None)],
)
def test_endpoint_says_how_long_to_wait(value: str | None, seconds: float | None) -> None:
    with pytest.raises(PassingError) as caught:
        raise_unless_answered(429, {} if value is None else {"Retry-After": value}, b"")
    assert (caught.value.pause_s, caught.value.is_limit) == (seconds, True)


def test_endpoint_may_name_the_time() -> None:
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    with pytest.raises(PassingError) as caught:
        raise_unless_answered(503, {"Retry-After": date}, b"")
    assert caught.value.pause_s == pytest.approx(30, abs=2)
    assert not caught.value.is_limit
