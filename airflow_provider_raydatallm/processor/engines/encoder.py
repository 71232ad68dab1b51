"""From requests to token ids: a model's chat template and tokenizer, and what becomes of a prompt that is too
long."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raydatallm.spec import SliceJob

#: vLLM's own for requests that set none.
_MAX_TOKENS = 16
#: Cutting tokens off a text can give one of other tokens, and not always of fewer.
_CUTS = 4


@dataclass(frozen=True)
class Encoded:
    """A request as an engine takes it.

    :param params: JSON text of vLLM's sampling parameters.
    :param most: tokens of the prompt, and of the longest answer that is allowed.
    :param shortened: whether the prompt was cut to `Encoder`'s limit.
    :param error: why it cannot be asked; there are no tokens then.
    """

    tokens: Sequence[int] = ()
    params: str = "{}"
    most: int = 0
    shortened: bool = False
    error: Exception | None = None


class Encoder:
    """
    :param limit: tokens that a prompt and its answer may have together: longer prompts are shortened. None
        leaves prompts as they are.
    """

    def __init__(self, job: SliceJob, limit: int | None = None) -> None:
        from transformers import AutoTokenizer

        kwargs = job.engine_kwargs
        self._tokenizer = AutoTokenizer.from_pretrained(
            os.path.expanduser(kwargs.get("tokenizer") or job.model_source),
            revision=kwargs.get("tokenizer_revision") or kwargs.get("revision"),
            trust_remote_code=bool(kwargs.get("trust_remote_code")),
        )
        self._template = job.chat_template_kwargs
        self._limit = limit
        # Tokenizers are not made for several threads; inside they use all cores.
        self._tokenizing = threading.Lock()

    def __call__(self, requests: Sequence[str]) -> list[Encoded]:
        """Each request (JSON text of messages and sampling_params)."""
        made: list[Encoded] = []
        texts: list[str] = []
        parsed = [json.loads(request) for request in requests]
        for request in parsed:
            try:
                _refuse_media(request["messages"])
                texts.append(self._render(request["messages"]))
                made.append(Encoded(params=json.dumps(request["sampling_params"], sort_keys=True)))
            except Exception as e:  # a template may refuse messages in its own words
                texts.append("")
                made.append(Encoded(error=e))
        for i, tokens in enumerate(self._tokenize(texts)):
            if made[i].error is None:
                try:
                    made[i] = self._fitted(parsed[i], replace(made[i], tokens=tokens))
                except Exception as e:
                    made[i] = Encoded(error=e)
        return made

    def _fitted(self, request: Mapping[str, Any], encoded: Encoded) -> Encoded:
        answer = int(request["sampling_params"].get("max_tokens", _MAX_TOKENS) or 0)
        prompt = len(encoded.tokens)
        if self._limit is None or prompt + answer <= self._limit:
            return replace(encoded, most=prompt + answer)
        tokens = self._shorten(request["messages"], prompt, self._limit - answer)
        return replace(encoded, tokens=tokens, most=len(tokens) + answer, shortened=True)

    def _shorten(self, messages: Sequence[Mapping[str, Any]], length: int, room: int) -> Sequence[int]:
        """A prompt of so many tokens without the end of its longest text, so that it has the room's:
        instructions, which come first, and the template's own end stay."""
        texts = [(len(m["content"]), i) for i, m in enumerate(messages) if isinstance(m["content"], str)]
        if texts:
            _, longest = max(texts)
            [kept] = self._tokenize([messages[longest]["content"]])
            over = length - room
            for _ in range(_CUTS):
                kept = kept[: max(0, len(kept) - over)]
                cut = [dict(m) for m in messages]
                cut[longest]["content"] = self._tokenizer.decode(kept, skip_special_tokens=False)
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
        # The template has put what stands before a prompt.
        with self._tokenizing:
            made = self._tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)
        tokens: list[list[int]] = made["input_ids"]
        return tokens


def _refuse_media(messages: Sequence[Mapping[str, Any]]) -> None:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") != "text":
                raise ValueError(
                    f"a message has a part of type {part.get('type')!r}, and engine 'vllm' answers text "
                    "only: set engine='ray_data_llm'"
                )
