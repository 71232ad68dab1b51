"""Turns requests into token ids, by a model's tokenizer and what the task makes of it (`prompts`)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.control_tokens import cells_of
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import TokenizedRequest
from airflow_provider_raydatallm.processor.engines.vllm.request.adapter import with_adapter
from airflow_provider_raydatallm.processor.engines.vllm.request.prompts import PROMPTS, Part
from airflow_provider_raydatallm.processor.engines.vllm.request.text_tokenizer import TextTokenizer


@dataclass(frozen=True)
class _Request:
    """
    :param parts: what is tokenized apart.
    :param texts: the parts, rendered.
    """

    whole: Part
    parts: list[Part]
    texts: list[str]
    sampling_params: dict[str, Any]
    adapter: str


class PromptTokenizer:
    """
    :param limit: tokens of a prompt plus max_tokens: longer prompts are shortened. None: no limit.
    """

    def __init__(self, job: SliceJob, limit: int | None = None) -> None:
        self._tokenizer = TextTokenizer(job)
        self._prompts = PROMPTS[job.task.kind](job, self._tokenizer)
        self._limit = limit

    @property
    def max_positions(self) -> int | None:
        """Tokens that the model has positions for, as far as its files say."""
        return self._tokenizer.max_positions

    def __call__(self, requests: Sequence[str]) -> list[TokenizedRequest]:
        """:param requests: JSON text of messages and sampling_params."""
        parsed: list[_Request | Exception] = []
        for json_text in requests:
            try:
                parsed.append(self._parse(json_text))
            except Exception as e:  # templates raise any type
                parsed.append(e)
        texts = [text for request in parsed if isinstance(request, _Request) for text in request.texts]
        tokens: list[list[int]] | None = None
        with contextlib.suppress(Exception):  # of one text: it is tokenized again below, and fails alone
            tokens = self._tokenizer(texts)
        of_all = iter(tokens) if tokens is not None else None
        tokenized: list[TokenizedRequest] = []
        for request in parsed:
            if isinstance(request, Exception):
                tokenized.append(TokenizedRequest(error=request))
                continue
            of_parts = list(itertools.islice(of_all, len(request.texts))) if of_all is not None else None
            try:
                tokenized.append(self._tokenize(request, of_parts or self._tokenizer(request.texts)))
            except Exception as e:
                tokenized.append(TokenizedRequest(error=e))
        return tokenized

    def _parse(self, json_text: str) -> _Request:
        request = from_json(json_text)
        messages = [_flatten_content(m) for m in request["messages"]]
        if media := request.get("media"):
            _show(messages, len(media))
        whole = Part(messages, cells_of(messages, request.get("cells")))
        parts = self._prompts.parts(whole)
        texts = [self._prompts.render(part.messages) for part in parts]
        return _Request(whole, parts, texts, request["sampling_params"], request.get("adapter", ""))

    def _tokenize(self, request: _Request, tokens: list[list[int]]) -> TokenizedRequest:
        safe = [
            self._tokenizer.without_forged(*part, of_part, self._prompts.render)
            for part, of_part in zip(request.parts, tokens, strict=True)
        ]
        prompt = self._prompts.prompt(request.texts, safe, request.sampling_params)
        limit = None if self._limit is None else self._limit - prompt.max_tokens
        is_too_long = limit is not None and prompt.longest > limit
        if limit is not None and is_too_long:
            prompt = self._prompts.shorten(request.whole, prompt, limit)
        return TokenizedRequest(
            prompt.tokens,
            with_adapter(prompt.params, request.adapter) if request.adapter else prompt.params,
            prompt.longest + prompt.max_tokens,
            prompt.max_tokens,
            shortened=is_too_long,
            adapter=request.adapter,
        )


def _show(messages: Sequence[dict[str, Any]], media: int) -> None:
    """Has the first message of the user begin with the row's media (`ChatPrompts.render`)."""
    first = next((message for message in messages if message.get("role") == "user"), None)
    if first is None:
        raise ValueError("no message is the user's, and so none can show the row's images")
    first["media"] = media


def _flatten_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as one text, which every template takes. Parts become lines, as in vLLM's
    server."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": "" if content is None else str(content)}
    for part in content:
        if part.get("type") != "text":
            raise ValueError(
                f"a message has a part of type {part.get('type')!r}, and engine 'vllm' takes text: give "
                "images by images= (a column)"
            )
    return {**message, "content": "\n".join(part["text"] for part in content)}
