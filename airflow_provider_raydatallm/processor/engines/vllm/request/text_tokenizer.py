"""A model's tokenizer: the tokens of texts, in which a row's text stays text."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.engines.control_tokens import ControlTokens, ControlTokenSet, Spans
from airflow_provider_raydatallm.processor.sizing.model_config import read_model_config

#: Tokenizers without a limit report one far above this.
_NO_LENGTH = 10**9
#: For texts to which the template has added the special tokens.
_AS_IT_IS: dict[str, Any] = {"add_special_tokens": False}
#: Prompts without their cells whose control tokens are kept: one for a slice with a prompt.
_KNOWN_PROMPTS = 1000

Messages = Sequence[Mapping[str, Any]]


class TextTokenizer:
    """Thread-safe."""

    def __init__(self, job: SliceJob) -> None:
        self._job = job
        kwargs = job.engine.arguments
        trust_remote_code = bool(kwargs.get("trust_remote_code"))
        with contextlib.nullcontext() if trust_remote_code else _without_torch():
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(
                os.path.expanduser(kwargs.get("tokenizer") or job.model_source),
                revision=kwargs.get("tokenizer_revision") or kwargs.get("revision"),
                trust_remote_code=trust_remote_code,
            )
        if isinstance(job.task, Generate) and job.task.chat_template is not None:
            self._tokenizer.chat_template = job.task.chat_template
        # Tokenizers are not thread-safe; each call uses all cores.
        self._lock = threading.Lock()
        # It does the same, a fifth faster, once a call has set its options. A model's own code may do more.
        self._tokenizer("", **_AS_IT_IS)
        self._backend = None if trust_remote_code else getattr(self._tokenizer, "backend_tokenizer", None)
        self._control = ControlTokenSet(self._tokenizer)
        self._control_tokens: dict[bytes, list[int]] = {}  # of messages without their cells
        self._placeholder = f"cell-{secrets.token_hex(8)}"  # no row can guess it

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text, without special tokens around it."""
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

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    def apply_chat_template(self, messages: Messages, **kwargs: Any) -> str:
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        return text

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Those beside the vocabulary of texts, such as control tokens."""
        tokens: Mapping[str, int] = self._tokenizer.get_added_vocab()
        return tokens

    def read_json(self, name: str) -> Any:
        """A file beside the model's; None where there is none."""
        from transformers.utils import cached_file

        file = cached_file(
            os.path.expanduser(self._job.model_source),
            name,
            revision=self._job.engine.arguments.get("revision"),
            _raise_exceptions_for_missing_entries=False,
        )
        return from_json(Path(file).read_bytes()) if file is not None else None

    def count_control_tokens(self, text: str) -> int:
        [tokens] = self([text])
        return len(self._control.select(tokens))

    def with_special_tokens(self, *texts: str) -> tuple[list[int], list[int]]:
        """Returns the tokens of a text, or a pair, with those that the tokenizer adds by itself; and the type
        of each (0 for all, where the model has no types)."""
        with self._lock:
            encoding = self._tokenizer(*texts)
        tokens = list(encoding["input_ids"])
        return tokens, list(encoding.get("token_type_ids") or [0] * len(tokens))

    @property
    def max_positions(self) -> int | None:
        """Tokens that the model has positions for, as far as its files say."""
        config = read_model_config(self._job.model_source, self._job.engine.arguments)
        if config is not None:
            return config.max_positions
        length = int(self._tokenizer.model_max_length)
        return length if length < _NO_LENGTH else None

    def without_forged(
        self,
        messages: Messages,
        cells: Sequence[Spans],
        tokens: list[int],
        render: Callable[[Messages], str],
    ) -> list[int]:
        """Returns a prompt's tokens, with control tokens only where the template and fixed texts have them.

        :param tokens: of the prompt as one text, which are right unless a cell spells a control token.
        :param render: makes the prompt of messages.
        :raises ControlTokens: when that cannot be made sure of.
        """
        others = [{k: v for k, v in m.items() if k != "content"} for m in messages]
        self._control.raise_if_forged(others, None)
        expected = self._expected_control_tokens(messages, cells, render)
        if self._control.select(tokens) == expected:
            return tokens
        marked, values = _replace_cells(messages, cells, lambda i: f"{self._placeholder}-{i}-")
        parts = re.split(f"{self._placeholder}-(\\d+)-", render(marked))
        text, spans = "", []
        for literal, index in itertools.zip_longest(parts[::2], parts[1::2]):
            text += literal
            if index is not None:
                spans.append((len(text), len(text) + len(values[int(index)])))
                text += values[int(index)]
        pieces = self._control.split(text, spans)
        tokens = list(itertools.chain.from_iterable(self(pieces)))
        if len(set(parts[1::2])) != len(values) or self._control.select(tokens) != expected:
            raise ControlTokens(
                "the row's text holds a control token of the model, and cannot be told from the prompt after "
                "the chat template: remove it in preprocess"
            )
        return tokens

    def _expected_control_tokens(
        self, messages: Messages, cells: Sequence[Spans], render: Callable[[Messages], str]
    ) -> list[int]:
        neutral, _ = _replace_cells(messages, cells, lambda i: "x")
        key = to_json(neutral)
        expected = self._control_tokens.get(key)
        if expected is None:
            [tokens] = self([render(neutral)])
            if len(self._control_tokens) >= _KNOWN_PROMPTS:
                self._control_tokens.clear()
            expected = self._control_tokens[key] = self._control.select(tokens)
        return expected


def _replace_cells(
    messages: Messages, cells: Sequence[Spans], name: Callable[[int], str]
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
