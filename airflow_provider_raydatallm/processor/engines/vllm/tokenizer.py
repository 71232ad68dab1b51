"""Turns requests into token ids by a model's chat template and tokenizer, and shortens long prompts."""

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

#: vLLM's default.
_MAX_TOKENS = 16
#: Attempts to shorten a message: text cut at a token may tokenize differently, and not always shorter.
_ATTEMPTS = 4
#: Tokenizers without a limit report one far above this.
_NO_LENGTH = 10**9


@dataclass(frozen=True)
class TokenizedRequest:
    """A request as vLLM takes it.

    :param params: JSON text of vLLM's sampling parameters.
    :param total_tokens: of the prompt plus max_tokens.
    :param shortened: whether the prompt was cut to the tokenizer's limit.
    :param error: why the request cannot be sent; there are no tokens then.
    """

    tokens: Sequence[int] = ()
    params: str = "{}"
    total_tokens: int = 0
    shortened: bool = False
    error: Exception | None = None


class PromptTokenizer:
    """
    :param limit: tokens of a prompt plus max_tokens: longer prompts are shortened. None: no limit.
    """

    def __init__(self, job: SliceJob, limit: int | None = None) -> None:
        kwargs = job.engine_kwargs
        trust_remote_code = bool(kwargs.get("trust_remote_code"))
        with contextlib.nullcontext() if trust_remote_code else _without_torch():
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(
                os.path.expanduser(kwargs.get("tokenizer") or job.model_source),
                revision=kwargs.get("tokenizer_revision") or kwargs.get("revision"),
                trust_remote_code=trust_remote_code,
            )
        self._job = job
        self._template = job.chat_template_kwargs
        self._limit = limit
        # Tokenizers are not thread-safe; each call uses all cores.
        self._lock = threading.Lock()

    def __call__(self, requests: Sequence[str]) -> list[TokenizedRequest]:
        """:param requests: JSON text of messages and sampling_params."""
        tokenized: list[TokenizedRequest] = []
        texts: list[str] = []
        parsed = [json.loads(request) for request in requests]
        for request in parsed:
            try:
                request["messages"] = [_flatten_content(m) for m in request["messages"]]
                texts.append(self._render(request["messages"]))
                tokenized.append(
                    TokenizedRequest(params=json.dumps(request["sampling_params"], sort_keys=True))
                )
            except Exception as e:  # templates raise any type
                texts.append("")
                tokenized.append(TokenizedRequest(error=e))
        for i, tokens in enumerate(self._tokenize(texts)):
            if tokenized[i].error is None:
                try:
                    tokenized[i] = self._apply_limit(parsed[i], replace(tokenized[i], tokens=tokens))
                except Exception as e:
                    tokenized[i] = TokenizedRequest(error=e)
        return tokenized

    @property
    def max_positions(self) -> int | None:
        """Tokens that the model has positions for, as far as its files say."""
        config = read_model_config(self._job.model_source, self._job.engine_kwargs)
        if config is not None:
            return config.max_positions
        length = int(self._tokenizer.model_max_length)
        return length if length < _NO_LENGTH else None

    def _apply_limit(self, request: Mapping[str, Any], tokenized: TokenizedRequest) -> TokenizedRequest:
        max_tokens = int(request["sampling_params"].get("max_tokens", _MAX_TOKENS) or 1)
        prompt = len(tokenized.tokens)
        if self._limit is None or prompt + max_tokens <= self._limit:
            return replace(tokenized, total_tokens=prompt + max_tokens)
        tokens = self._shorten(request["messages"], prompt, self._limit - max_tokens)
        return replace(tokenized, tokens=tokens, total_tokens=len(tokens) + max_tokens, shortened=True)

    def _shorten(self, messages: Sequence[Mapping[str, Any]], length: int, limit: int) -> Sequence[int]:
        """Cuts the end of the longest message, so that the prompt of `length` tokens has `limit` at most. The
        template's own end stays, and so does the system message if possible.

        :raises ValueError: when no message can be cut far enough.
        """
        by_length = sorted(
            range(len(messages)),
            key=lambda i: (messages[i]["role"] == "system", -len(messages[i]["content"])),
        )
        for i in by_length:
            [kept] = self._tokenize([messages[i]["content"]])
            over = length - limit
            for _ in range(_ATTEMPTS):
                kept = kept[: max(0, len(kept) - over)]
                cut = [*messages]
                cut[i] = {**messages[i], "content": self._tokenizer.decode(kept, skip_special_tokens=False)}
                [tokens] = self._tokenize([self._render(cut)])
                over = len(tokens) - limit
                if over <= 0:
                    return tokens
        raise ValueError(
            f"the prompt has {length:,} tokens, more than the {limit:,} that max_model_len leaves beside "
            "max_tokens, and cannot be shortened to fit"
        )

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._template
        )
        return text

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        # The template has added the special tokens.
        with self._lock:
            encoding = self._tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)
        tokens: list[list[int]] = encoding["input_ids"]
        return tokens


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Hides torch from transformers: it takes seconds to import, and tokenizers do not need it."""
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _flatten_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as one text, which every template takes. Parts become lines, as in vLLM's
    server."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": content or ""}
    for part in content:
        if part.get("type") != "text":
            raise ValueError(
                f"a message has a part of type {part.get('type')!r}, and engine 'vllm' takes text only: set "
                "engine='ray_data_llm'"
            )
    return {**message, "content": "\n".join(part["text"] for part in content)}
