"""From requests to token ids: a model's chat template and tokenizer, and what becomes of a prompt that is too
long."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.sizing.model_config import read_model_config

#: vLLM's own for requests that set none.
_MAX_TOKENS = 16
#: Cutting tokens off a text can give one of other tokens, and not always of fewer.
_CUTS = 4
#: What tokenizers say that know of no limit is far more than this.
_NO_LENGTH = 10**9


@dataclass(frozen=True)
class TokenizedRequest:
    """A request as an engine takes it.

    :param params: JSON text of vLLM's sampling parameters.
    :param most: tokens of the prompt, and of the longest answer that is allowed.
    :param shortened: whether the prompt was cut to `Encoder`'s limit.
    :param error: why it cannot be asked; there are no tokens then.
    """

    tokens: Sequence[int] = ()
    params: str = "{}"
    total_tokens: int = 0
    shortened: bool = False
    error: Exception | None = None


class PromptTokenizer:
    """
    :param limit: tokens that a prompt and its answer may have together: longer prompts are shortened. None
        leaves prompts as they are.
    """

    def __init__(self, job: SliceJob, limit: int | None = None) -> None:
        kwargs = job.engine_kwargs
        of_the_model = bool(kwargs.get("trust_remote_code"))
        with contextlib.nullcontext() if of_the_model else _without_torch():
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(
                os.path.expanduser(kwargs.get("tokenizer") or job.model_source),
                revision=kwargs.get("tokenizer_revision") or kwargs.get("revision"),
                trust_remote_code=of_the_model,
            )
        self._job = job
        self._template = job.chat_template_kwargs
        self._limit = limit
        # Tokenizers are not made for several threads; inside they use all cores.
        self._tokenizing = threading.Lock()

    def __call__(self, requests: Sequence[str]) -> list[TokenizedRequest]:
        """Each request (JSON text of messages and sampling_params)."""
        made: list[TokenizedRequest] = []
        texts: list[str] = []
        parsed = [json.loads(request) for request in requests]
        for request in parsed:
            try:
                request["messages"] = [_plain(m) for m in request["messages"]]
                texts.append(self._render(request["messages"]))
                made.append(TokenizedRequest(params=json.dumps(request["sampling_params"], sort_keys=True)))
            except Exception as e:  # a template may refuse messages in its own words
                texts.append("")
                made.append(TokenizedRequest(error=e))
        for i, tokens in enumerate(self._tokenize(texts)):
            if made[i].error is None:
                try:
                    made[i] = self._fitted(parsed[i], replace(made[i], tokens=tokens))
                except Exception as e:
                    made[i] = TokenizedRequest(error=e)
        return made

    @property
    def positions(self) -> int | None:
        """The most tokens that the model has places for, as far as its files say."""
        shape = read_model_config(self._job.model_source, self._job.engine_kwargs)
        if shape is not None:
            return shape.max_positions
        most = int(self._tokenizer.model_max_length)
        return most if most < _NO_LENGTH else None

    def _fitted(self, request: Mapping[str, Any], encoded: TokenizedRequest) -> TokenizedRequest:
        answer = int(request["sampling_params"].get("max_tokens", _MAX_TOKENS) or 1)
        prompt = len(encoded.tokens)
        if self._limit is None or prompt + answer <= self._limit:
            return replace(encoded, total_tokens=prompt + answer)
        tokens = self._shorten(request["messages"], prompt, self._limit - answer)
        return replace(encoded, tokens=tokens, total_tokens=len(tokens) + answer, shortened=True)

    def _shorten(self, messages: Sequence[Mapping[str, Any]], length: int, room: int) -> Sequence[int]:
        """A prompt of so many tokens without the end of its longest message, so that it has the room's. The
        template's own end stays, and instructions as far as they can."""
        by_length = sorted(
            range(len(messages)),
            key=lambda i: (messages[i]["role"] == "system", -len(messages[i]["content"])),
        )
        for i in by_length:
            [kept] = self._tokenize([messages[i]["content"]])
            over = length - room
            for _ in range(_CUTS):
                kept = kept[: max(0, len(kept) - over)]
                cut = [*messages]
                cut[i] = {**messages[i], "content": self._tokenizer.decode(kept, skip_special_tokens=False)}
                [tokens] = self._tokenize([self._render(cut)])
                over = len(tokens) - room
                if over <= 0:
                    return tokens
        raise ValueError(
            f"the prompt of {length:,} tokens is longer than the maximum of {room:,} that max_model_len "
            "leaves beside the answer, and cannot be shortened to it"
        )

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._template
        )
        return text

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        # The template has put what stands before a prompt.
        with self._tokenizing:
            made = self._tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)
        tokens: list[list[int]] = made["input_ids"]
        return tokens


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Have transformers believe that there is no torch, which takes seconds to import and tokenizers do not
    need."""
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as one text, which every template takes; parts of text on lines of their
    own, as vLLM's server has them."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": content or ""}
    for part in content:
        if part.get("type") != "text":
            raise ValueError(
                f"a message has a part of type {part.get('type')!r}, and engine 'vllm' answers text "
                "only: set engine='ray_data_llm'"
            )
    return {**message, "content": "\n".join(part["text"] for part in content)}
