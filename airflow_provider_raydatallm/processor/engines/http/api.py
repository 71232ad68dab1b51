"""What an endpoint is asked, and what its reply says: one of OpenAI's APIs. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import TokenizedRequest

#: Higher counts are none.
_MOST_TOKENS = 1 << 31


class Api(ABC):
    """Takes the tokenizer's place in a feeder: an endpoint has its own, so `params` is a whole body."""

    #: Below `engine.url`.
    path: str
    #: Whether answers take tokens, as prompts do.
    writes = True

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
    def read(self, body: bytes, redact: Callable[[str], str] = str) -> dict[str, Any]:
        """Columns of `GROUP_SCHEMA`, with an `error` where the endpoint refuses the row.

        :param redact: removes secrets from what is quoted, before it is cut.
        :raises PassingError: for a reply that is something else.
        :raises SliceError: for one that no row's can be.
        """


def count(value: Any) -> int | None:
    """Tokens, where the endpoint counts them."""
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
