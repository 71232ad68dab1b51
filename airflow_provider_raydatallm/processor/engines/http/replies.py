"""What an endpoint's status means: an answer, a row that it refuses, a pause, or a reason to stop. Pure."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Callable, Mapping

from airflow_provider_raydatallm.contract.result.errors import Kind, SliceError

#: Error type of rows that the endpoint refuses.
ROW_REFUSED = "RefusedByEndpoint"
#: The row's own fault: its text is too long, or has what the endpoint does not accept.
_REFUSED = (400, 413, 422)
#: Passing, as are all of 500 and above.
_PASSING = (408, 409, 425)
#: After which a server may have answered all the same: its gateway waited no longer, or it broke down.
_MAY_HAVE_COST = (408, 500, 502, 504, *range(520, 528))
_MAX_MESSAGE = 500
#: Of a text that is searched for secrets: far more than the message, which no cut secret may reach.
_MAX_REDACTED = 1 << 16
#: Longer pauses that an endpoint asks for are cut: it is asked again then.
_LONGEST_PAUSE_S = 600.0
_ADVICE: Mapping[int, tuple[Kind, str]] = {
    401: ("input", "it does not accept the key: check the password of the connection in model_conn_id"),
    402: ("input", "the account has no credit: check it with the endpoint's provider"),
    403: ("input", "the key may not use this model: check model_source, and the rights of the key"),
    404: ("model", "it has no such model, or not this API: check model_source and engine.url"),
}


class RowRefusedError(Exception):
    """The endpoint refuses this row, and answers others."""


class PassingError(Exception):
    """Another try may succeed.

    :param pause_s: before which the endpoint wants none.
    :param is_limit: whether the endpoint works, and has had too many requests.
    :param may_have_cost: whether it may have answered all the same.
    """

    def __init__(
        self,
        message: str,
        *,
        pause_s: float | None = None,
        is_limit: bool = False,
        may_have_cost: bool = False,
    ) -> None:
        super().__init__(message)
        self.pause_s, self.is_limit, self.may_have_cost = pause_s, is_limit, may_have_cost


def raise_unless_answered(
    status: int, headers: Mapping[str, str], body: bytes, redact: Callable[[str], str] = str
) -> None:
    """
    :param redact: removes secrets from what is quoted, before it is cut.
    :raises RowRefusedError: for this row.
    :raises PassingError: when another try may succeed.
    :raises SliceError: when no row can succeed.
    """
    if 200 <= status < 300:
        return
    message = f"the endpoint answered {status}: {_error_message(body, redact)}"
    if status in _REFUSED:
        raise RowRefusedError(message)
    if status == 429 and b"insufficient_quota" in body:
        status = 402
    if status == 429 or status in _PASSING or status >= 500:
        raise PassingError(
            message,
            pause_s=_pause(headers),
            is_limit=status == 429,
            may_have_cost=status in _MAY_HAVE_COST,
        )
    if 300 <= status < 400:
        raise SliceError(
            f"the endpoint redirects to {redact(headers.get('Location', 'another address'))!r:.200}, which "
            "is not followed: the key is for one host. Set engine.url to where it answers itself",
            kind="input",
        )
    kind, advice = _ADVICE.get(status, ("input", "check engine.url: it may lead to something else"))
    raise SliceError(f"{message}. Most likely {advice}", kind=kind)


def broken_reply(body: bytes, problem: str, redact: Callable[[str], str]) -> PassingError:
    return PassingError(f"the endpoint's reply {problem}: {_snippet(body, redact)!r}", may_have_cost=True)


def _error_message(body: bytes, redact: Callable[[str], str]) -> str:
    try:
        error = json.loads(body)["error"]
        return _cut(str(error["message"] if isinstance(error, dict) else error), redact)
    except (ValueError, LookupError, TypeError, RecursionError):
        return _snippet(body, redact)


def _snippet(body: bytes, redact: Callable[[str], str]) -> str:
    return _cut(body[:_MAX_REDACTED].decode(errors="replace"), redact)


def _cut(text: str, redact: Callable[[str], str]) -> str:
    return redact(text[:_MAX_REDACTED])[:_MAX_MESSAGE]


def _pause(headers: Mapping[str, str]) -> float | None:
    """The seconds of `Retry-After`, which are a number or a date."""
    value = headers.get("Retry-After", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(0.0, seconds), _LONGEST_PAUSE_S) if seconds == seconds else None
