"""What an endpoint's status means: an answer, a row that it refuses, a pause, or a reason to stop. Pure."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Kind

#: Error type of rows that the endpoint refuses.
ROW_REFUSED = "RefusedByEndpoint"
#: The row's own fault: its text is too long, or has what the endpoint does not accept.
_REFUSED = (400, 413, 422)
#: Of every row. Others from 400 to 499 may be so (403: the key's rights), or a filter flagged the row.
_OF_ALL = (401, 402, 404, 501)
_REDIRECTS = (301, 302, 303, 307, 308)
#: Passing, as are all of 500 and above but 501: no server of such an API lacks its method.
_PASSING = (408, 409, 425, 429)
#: After which a server may have answered all the same: its gateway waited no longer, or it broke down.
_MAY_HAVE_COST = (408, 500, 502, 504, *range(520, 528))
#: Of a row that is over the limit of a whole minute, as OpenAI's API and those like it have it.
_TOO_LARGE = re.compile(rb"request too large", re.IGNORECASE)
_MAX_MESSAGE = 500
#: Of a text that is searched for secrets: far more than the message, which no cut secret may reach.
_MAX_REDACTED = 1 << 16
#: Longer pauses that an endpoint asks for are cut: it is asked again then.
_LONGEST_PAUSE_S = 600.0
#: Of an error.
_STATUS = re.compile("[45][0-9]{2}")
_ADVICE: Mapping[int, tuple[Kind, str]] = {
    401: ("input", "it does not accept the key: check the password of the connection in model_conn_id"),
    402: ("input", "the account has no credit: check it with the endpoint's provider"),
    403: ("input", "the key may not use this model: check model_source, and the rights of the key"),
    424: ("input", "something fails that the endpoint depends on: check it with the endpoint's provider"),
    451: ("input", "the model is not offered here: check model_source, and where the cluster is"),
    404: ("model", "it has no such model, or not this API: check model_source and engine.url"),
}
#: Where the reply is no error of such an API.
_ELSEWHERE: tuple[Kind, str] = (
    "input",
    "engine.url leads to something else: check its host, its port (8265 is Ray's dashboard), and that it "
    "ends in the API's path, such as /v1",
)


class RowRefusedError(Exception):
    """The endpoint refuses this row, and answers others.

    :param reply_bytes: of an answer that cannot be used, which it wrote all the same.
    """

    def __init__(self, message: str, *, reply_bytes: int = 0) -> None:
        super().__init__(message)
        self.reply_bytes = reply_bytes


class _QuotingError(Exception):
    """
    :param quoted: of the reply, which may repeat the request.
    """

    def __init__(self, message: str, quoted: str) -> None:
        super().__init__(f"{message}: {quoted}" if quoted else message)
        self.message, self.quoted = message, quoted


class DoubtfulRefusalError(_QuotingError):
    """Of this row, or of all: an answer to another text tells.

    :param of_all: what ends the run in the second case.
    :param is_sudden: whether it is of all, and most likely passes where others were answered before.
    :param may_have_cost: whether the endpoint answered.
    """

    def __init__(
        self,
        message: str,
        of_all: SliceError,
        *,
        quoted: str = "",
        is_sudden: bool = False,
        may_have_cost: bool = False,
    ) -> None:
        super().__init__(message, quoted)
        self.of_all, self.is_sudden, self.may_have_cost = of_all, is_sudden, may_have_cost
        self.reply_bytes = 0


class PassingError(_QuotingError):
    """Another try may succeed.

    :param pause_s: before which the endpoint wants none.
    :param is_limit: whether the endpoint works, and has had too many requests.
    :param may_have_cost: whether it may have answered all the same.
    :param timed_out: whether it took `engine.request_timeout`.
    :param of_all: what ends the run if it does not pass.
    """

    def __init__(
        self,
        message: str,
        *,
        quoted: str = "",
        pause_s: float | None = None,
        is_limit: bool = False,
        may_have_cost: bool = False,
        timed_out: bool = False,
        of_all: SliceError | None = None,
    ) -> None:
        super().__init__(message, quoted)
        self.pause_s, self.is_limit, self.may_have_cost = pause_s, is_limit, may_have_cost
        self.timed_out, self.of_all = timed_out, of_all
        self.reply_bytes = 0
        #: How often the row failed so.
        self.tries = 1


def raise_unless_answered(
    status: int, headers: Mapping[str, str], body: bytes, redact: Callable[[str], str] = str, url: str = ""
) -> None:
    """
    :param url: that answered.
    :param redact: removes secrets from what is quoted, before it is cut.
    :raises RowRefusedError: for this row.
    :raises DoubtfulRefusalError: for this row, or for all.
    :raises PassingError: when another try may succeed.
    """
    if is_answer(status):
        return
    message, quoted = f"the endpoint answered {status}", _error_message(body, redact)
    said = ": ".join(filter(None, [message, quoted]))
    if status in _REFUSED or (status == 429 and _TOO_LARGE.search(body)):
        raise RowRefusedError(said)
    if status == 429 and b"insufficient_quota" in body:
        status = 402
    if is_passing(status):
        raise PassingError(
            message,
            quoted=quoted,
            pause_s=_pause(headers),
            is_limit=status == 429,
            may_have_cost=status in _MAY_HAVE_COST,
        )
    if status in _REDIRECTS:
        where = redact(headers.get("Location", "another address"))
        message = f"the endpoint redirects to {where!r:.200}, which is not followed"
        advice = ("The key is for one host", "Set engine.url to where it answers itself")
        of_all = SliceError(message, kind="input", advice=advice)
        raise DoubtfulRefusalError(message, of_all, is_sudden=True)
    is_elsewhere = status not in _ADVICE or (status == 404 and not _is_error(body))
    kind, reason = _ELSEWHERE if is_elsewhere else _ADVICE[status]
    sentence = " at ".join(filter(None, [message, redact(url)]))
    of_all = SliceError(sentence, kind=kind, advice=f"Most likely {reason}", row_texts=(quoted,))
    raise DoubtfulRefusalError(message, of_all, quoted=quoted, is_sudden=status in _OF_ALL)


def is_answer(status: int) -> bool:
    return 200 <= status < 300


def is_passing(status: int) -> bool:
    return status in _PASSING or (status >= 500 and status != 501) or status < 200


def raise_error_within(reply: Any, body: bytes, redact: Callable[[str], str]) -> None:
    """
    :param reply: JSON of a status of success, in which some gateways send their errors.
    :raises Exception: as `raise_unless_answered`, by the status that the error names.
    """
    error = reply.get("error") if isinstance(reply, dict) else None
    if not error:
        return
    code = error.get("code") if isinstance(error, dict) else None
    status = int(code) if isinstance(code, int | str) and _STATUS.fullmatch(str(code)) else 500
    raise_unless_answered(status, {}, body, redact)


def broken_reply(body: bytes, problem: str, redact: Callable[[str], str]) -> PassingError:
    quoted = repr(_snippet(body, redact))
    return PassingError(f"the endpoint's reply {problem}", quoted=quoted, may_have_cost=True)


def _error_message(body: bytes, redact: Callable[[str], str]) -> str:
    try:
        error = json.loads(body)["error"]
        return _cut(str(error["message"] if isinstance(error, dict) else error), redact)
    except (ValueError, LookupError, TypeError, RecursionError):
        return _snippet(body, redact)


def _is_error(body: bytes) -> bool:
    """Whether a body is an error as OpenAI's API, and those like it, write it."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(reply, dict) and bool({"error", "object", "message"} & reply.keys())


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
