"""Turns requests into token ids by a model's chat template and tokenizer, and shortens long prompts."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json, to_json

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.control_tokens import (
    ControlTokens,
    ControlTokenSet,
    Spans,
    cells_of,
)
from airflow_provider_raydatallm.processor.engines.vllm.embedding import embed_params
from airflow_provider_raydatallm.processor.engines.vllm.label_tree import LabelTree
from airflow_provider_raydatallm.processor.engines.vllm.labels import Labels
from airflow_provider_raydatallm.processor.engines.vllm.lora import with_adapter
from airflow_provider_raydatallm.processor.sizing.model_config import read_model_config

#: vLLM's default.
_MAX_TOKENS = 16
#: Attempts to shorten a message: text cut at a token may tokenize differently, and not always shorter.
_ATTEMPTS = 4
#: Tokenizers without a limit report one far above this.
_NO_LENGTH = 10**9
#: For texts to which the template has added the special tokens.
_AS_IT_IS: dict[str, Any] = {"add_special_tokens": False}
#: Prompts without their cells whose control tokens are kept: one for a slice with a prompt.
_KNOWN_PROMPTS = 1000


@dataclass(frozen=True)
class TokenizedRequest:
    """A request as vLLM takes it.

    :param params: JSON text of vLLM's sampling parameters, or of a `LabelTree`.
    :param total_tokens: of the prompt plus max_tokens.
    :param shortened: whether the prompt was cut to the tokenizer's limit.
    :param adapter: digest of the LoRA adapter that answers it, which `params` names too; "" without.
    :param error: why the request cannot be sent; there are no tokens then.
    """

    tokens: Sequence[int] = ()
    params: str = "{}"
    total_tokens: int = 0
    shortened: bool = False
    adapter: str = ""
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
        self._template = dict(job.chat_template_kwargs)
        if job.compares_labels:  # by the first token, which is the label's and no thought's
            self._template.setdefault("enable_thinking", False)
        self._limit = limit
        # Tokenizers are not thread-safe; each call uses all cores.
        self._lock = threading.Lock()
        # It does the same, a fifth faster, once a call has set its options. A model's own code may do more.
        self._tokenizer("", **_AS_IT_IS)
        self._backend = None if trust_remote_code else getattr(self._tokenizer, "backend_tokenizer", None)
        self._control = ControlTokenSet(self._tokenizer)
        self._control_tokens: dict[bytes, list[int]] = {}  # of messages without their cells
        #: Tokens around a text that is embedded as it is; a chat template writes its own.
        self._around = self._find_special_tokens() if job.task == "embed" else ([], [])
        self._labels = Labels.of_job(job, self._render, self._tokenize)
        self._placeholder = f"cell-{secrets.token_hex(8)}"  # no row can guess it

    def __call__(self, requests: Sequence[str]) -> list[TokenizedRequest]:
        """:param requests: JSON text of messages and sampling_params."""
        parsed: list[dict[str, Any]] = []
        texts: list[str] = []
        errors: dict[int, Exception] = {}
        for i, json_text in enumerate(requests):
            request, text = {}, ""
            try:
                request = from_json(json_text)
                request["messages"] = [_flatten_content(m) for m in request["messages"]]
                request["cells"] = cells_of(request["messages"], request.get("cells"))
                text = self._render(request["messages"])
            except Exception as e:  # templates raise any type
                errors[i] = e
            parsed.append(request)
            texts.append(text)
        all_tokens: list[list[int]] | None = None
        with contextlib.suppress(Exception):  # of one text: it is tokenized again below, and fails alone
            all_tokens = self._tokenize(texts)
        tokenized: list[TokenizedRequest] = []
        for i, text in enumerate(texts):
            result = TokenizedRequest(error=errors.get(i))
            if result.error is None:
                try:
                    tokens = all_tokens[i] if all_tokens is not None else self._tokenize([text])[0]
                    tree = None
                    if self._labels is not None:
                        tree = self._labels.after(text, tokens, parsed[i]["sampling_params"])
                    tokens = self._without_forged(parsed[i]["messages"], parsed[i]["cells"], tokens)
                    result = self._limited(parsed[i], tokens, tree)
                    if (adapter := parsed[i].get("adapter")) is not None:
                        params = with_adapter(result.params, adapter)
                        result = replace(result, params=params, adapter=adapter)
                except Exception as e:
                    result = TokenizedRequest(error=e)
            tokenized.append(result)
        return tokenized

    def _without_forged(
        self, messages: Sequence[Mapping[str, Any]], cells: Sequence[Spans], tokens: list[int]
    ) -> list[int]:
        """Returns a prompt's tokens, with control tokens only where the template and fixed texts have them.

        :param tokens: of the prompt as one text, which are right unless a cell spells a control token.
        :raises ControlTokens: when that cannot be made sure of.
        """
        others = [{k: v for k, v in m.items() if k != "content"} for m in messages]
        self._control.raise_if_forged(others, None)
        expected = self._expected_control_tokens(messages, cells)
        if self._control.select(tokens) == expected:
            return tokens
        marked, values = self._replace_cells(messages, cells, lambda i: f"{self._placeholder}-{i}-")
        parts = re.split(f"{self._placeholder}-(\\d+)-", self._render(marked))
        text, spans = "", []
        for literal, index in itertools.zip_longest(parts[::2], parts[1::2]):
            text += literal
            if index is not None:
                spans.append((len(text), len(text) + len(values[int(index)])))
                text += values[int(index)]
        pieces = self._control.split(text, spans)
        tokens = list(itertools.chain.from_iterable(self._tokenize(pieces)))
        if len(set(parts[1::2])) != len(values) or self._control.select(tokens) != expected:
            raise ControlTokens(
                "the row's text holds a control token of the model, and cannot be told from the prompt after "
                "the chat template: remove it in preprocess"
            )
        return tokens

    def _expected_control_tokens(
        self, messages: Sequence[Mapping[str, Any]], cells: Sequence[Spans]
    ) -> list[int]:
        neutral, _ = self._replace_cells(messages, cells, lambda i: "x")
        key = to_json(neutral)
        expected = self._control_tokens.get(key)
        if expected is None:
            [tokens] = self._tokenize([self._render(neutral)])
            if len(self._control_tokens) >= _KNOWN_PROMPTS:
                self._control_tokens.clear()
            expected = self._control_tokens[key] = self._control.select(tokens)
        return expected

    def _replace_cells(
        self, messages: Sequence[Mapping[str, Any]], cells: Sequence[Spans], name: Callable[[int], str]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Returns the messages with names in place of their cells, and the cells."""
        replaced: list[dict[str, Any]] = []
        values: list[str] = []
        for message, spans in zip(messages, cells, strict=True):
            content, end, text = message["content"], 0, ""
            for start, stop in spans:
                if start < stop:
                    text += content[end:start] + name(len(values))
                    values.append(content[start:stop])
                    end = stop
            replaced.append({**message, "content": text + content[end:]})
        return replaced, values

    @property
    def max_positions(self) -> int | None:
        """Tokens that the model has positions for, as far as its files say."""
        config = read_model_config(self._job.model_source, self._job.engine_kwargs)
        if config is not None:
            return config.max_positions
        length = int(self._tokenizer.model_max_length)
        return length if length < _NO_LENGTH else None

    def _limited(
        self, request: Mapping[str, Any], tokens: Sequence[int], tree: LabelTree | None
    ) -> TokenizedRequest:
        sampling = request["sampling_params"]
        if self._job.task == "embed":
            if names := sampling.keys() - {"temperature"}:
                raise ValueError(f"sampling_params[{min(names)!r}] means nothing to task='embed'")
            params, max_tokens = embed_params(self._job), 0
        elif tree is not None:
            params, max_tokens = tree.params, tree.most_tokens
        else:
            params = to_json(sampling).decode()
            max_tokens = int(sampling.get("max_tokens", _MAX_TOKENS) or 1)
        before, after = self._around
        tokens = [*before, *tokens, *after] if before or after else tokens
        if self._limit is None or len(tokens) + max_tokens <= self._limit:
            return TokenizedRequest(tokens, params, len(tokens) + max_tokens)
        limit = self._limit - max_tokens
        if self._job.task == "embed":
            tokens = [*tokens[: limit - len(after)], *after]
            return TokenizedRequest(tokens, params, len(tokens), shortened=True)
        tokens = self._shorten(request["messages"], request["cells"], len(tokens), limit)
        return TokenizedRequest(tokens, params, len(tokens) + max_tokens, shortened=True)

    def _shorten(
        self, messages: Sequence[Mapping[str, Any]], cells: Sequence[Spans], length: int, limit: int
    ) -> Sequence[int]:
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
                cut, cut_cells = [*messages], [*cells]
                content = self._tokenizer.decode(kept, skip_special_tokens=False)
                cut[i] = {**messages[i], "content": content}
                cut_cells[i] = _cut_cells(cells[i], messages[i]["content"], content)
                [tokens] = self._tokenize([self._render(cut)])
                tokens = self._without_forged(cut, cut_cells, tokens)
                over = len(tokens) - limit
                if over <= 0:
                    return tokens
        raise ValueError(
            f"the prompt has {length:,} tokens, more than the {limit:,} that max_model_len leaves beside "
            "max_tokens, and cannot be shortened to fit"
        )

    def _find_special_tokens(self) -> tuple[list[int], list[int]]:
        """Returns those that the tokenizer puts before and after a text by itself."""
        [text], whole = self._tokenize(["x"]), list(self._tokenizer("x")["input_ids"])
        for start in range(len(whole) - len(text) + 1):
            if whole[start : start + len(text)] == text:
                return whole[:start], whole[start + len(text) :]
        return [], []

    def _render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        if self._job.task == "embed":
            return "\n".join(message["content"] for message in messages)
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **self._template
        )
        return text

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        with self._lock:
            if self._backend is not None:
                return [
                    encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), **_AS_IT_IS)
                ]
            encoding = self._tokenizer(list(texts), return_attention_mask=False, **_AS_IT_IS)
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


def _cut_cells(cells: Spans, content: str, cut: str) -> Spans:
    """The cells of a content that was cut at its end."""
    if not content.startswith(cut.rstrip("\ufffd")):  # decoding changed it
        return [(0, len(cut))]
    return [(start, min(stop, len(cut))) for start, stop in cells]


def _flatten_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as one text, which every template takes. Parts become lines, as in vLLM's
    server."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": "" if content is None else str(content)}
    for part in content:
        if part.get("type") != "text":
            raise ValueError(
                f"a message has a part of type {part.get('type')!r}, and engine 'vllm' takes text only: set "
                "engine='ray_data_llm'"
            )
    return {**message, "content": "\n".join(part["text"] for part in content)}
