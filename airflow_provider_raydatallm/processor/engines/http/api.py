"""What an endpoint is asked, and what its reply says: one of OpenAI's APIs. Pure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import TokenizedRequest
from airflow_provider_raydatallm.processor.engines.http.replies import broken_reply, raise_error_within

#: Higher counts are none.
_MOST_TOKENS = 1 << 31


class Api(ABC):
    """Takes the tokenizer's place in a feeder: an endpoint has its own, so `params` is a whole body."""

    #: Below `engine.url`.
    path: str
    #: Whether answers take tokens, as prompts do.
    writes = True
    #: What it answers, in messages.
    _reply_name: str

    def __init__(self, job: SliceJob) -> None:
        self.job = job

    def __call__(self, requests: Sequence[str]) -> list[TokenizedRequest]:
        """:param requests: JSON text of messages and sampling_params."""
        return [self._to_request(request) for request in requests]

    def _to_request(self, text: str) -> TokenizedRequest:
        try:
            return self.to_body(from_json(text))
        except Exception as e:  # preprocess may return anything
            return TokenizedRequest(error=e)

    @abstractmethod
    def to_body(self, request: Mapping[str, Any]) -> TokenizedRequest: ...

    @abstractmethod
    def with_text(self, body: str, text: str) -> str:
        """The same body with this text in place of the row's, and a short answer."""

    @abstractmethod
    def plain(self, body: str, text: str) -> str:
        """The least body with this text, and the limit that a row's answer has."""

    def read(self, body: bytes, asked: bytes = b"{}", redact: Callable[[str], str] = str) -> dict[str, Any]:
        """Returns columns of `GROUP_SCHEMA`, with an `error` where the endpoint refuses the row.

        :param asked: the request's body.
        :param redact: removes secrets from what is quoted, before it is cut.
        :raises PassingError: for a reply that is something else.
        :raises RowRefusedError, DoubtfulRefusalError, SliceError: for an error, as `raise_unless_answered`.
        """
        try:
            reply = json.loads(body)
            raise_error_within(reply, body, redact)
            return self._read(reply, asked, redact)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
            raise broken_reply(body, f"is not {self._reply_name}", redact) from e

    @abstractmethod
    def _read(self, reply: Any, asked: bytes, redact: Callable[[str], str]) -> dict[str, Any]:
        """:param reply: any JSON; whatever Python raises for it stands for a broken reply."""


def count(value: Any) -> int | None:
    """Tokens, where the endpoint counts them."""
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
