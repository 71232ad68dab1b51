"""Control tokens: what a chat template writes between messages, and a row must not.

A row's text that spells such a token (`<|im_end|>`, `</s>`) would end its message and forge another one. Only
what the DAG's author wrote, the template and the fixed parts of a prompt, may hold control tokens. A request
says by `cells` which parts of its messages come from the row; without it all of their text does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Parts of a text, as (start, stop).
Spans = Sequence[Sequence[int]]


class ControlTokens(ValueError):
    """A row's text spells a control token. The name is the quarantined row's error type."""


#: A hieroglyph: no tokenizer has it, and none strips it as one that cannot be seen.
_UNKNOWN_CHARACTER = "\U00013000"
#: What a token may be beside that.
_ROLES = ("bos_token", "eos_token", "sep_token", "cls_token", "pad_token", "mask_token")


class ControlTokenSet:
    """The control tokens of a tokenizer: those flagged as special, and others that its chat template writes
    (`<tool_call>`)."""

    def __init__(self, tokenizer: Any) -> None:
        """:param tokenizer: of transformers."""
        template = str(getattr(tokenizer, "chat_template", None))
        texts = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        for token_id, token in (getattr(tokenizer, "added_tokens_decoder", None) or {}).items():
            text = str(token)
            # Some tokenizers add runs of spaces and newlines as tokens, which are ordinary text.
            if token.special or (len(text) > 2 and not text.isspace() and text in template):
                texts[text] = token_id
        texts.pop("", None)
        if _stands_for_unknown_characters(unknown := getattr(tokenizer, "unk_token", None), tokenizer):
            texts.pop(str(unknown), None)
        self._ids = frozenset(texts.values())
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def select(self, tokens: Sequence[int]) -> list[int]:
        """The control tokens among tokens."""
        return [token for token in tokens if token in self._ids]

    def find_forged(self, text: str, cells: Spans) -> Iterator[re.Match[str]]:
        """Control tokens in a text that do not lie outside of all its cells."""
        start = 0
        while match := self._pattern.search(text, start):
            if any(first < match.end() and match.start() < stop for first, stop in cells):
                yield match
                start = match.start() + 1
            else:
                start = match.end()

    def split(self, text: str, cells: Spans) -> list[str]:
        """The text, cut inside of each forged control token: tokenized one by one, the pieces hold none."""
        cuts = [0, *(match.start() + 1 for match in self.find_forged(text, cells)), len(text)]
        return [text[a:b] for a, b in itertools.pairwise(cuts) if a < b]

    def raise_if_forged(
        self, messages: Sequence[Mapping[str, Any]], cells: Sequence[Spans | None] | None
    ) -> None:
        """:raises ControlTokens: when a message's text from the row spells a control token."""
        for i, message in enumerate(messages):
            for key, value in message.items():
                spans = cells[i] if cells is not None and key == "content" else None
                for text in _texts(value):
                    match = next(
                        self.find_forged(text, spans if spans is not None else [(0, len(text))]), None
                    )
                    if match is not None:
                        raise ControlTokens(
                            f"the row's text holds the model's control token {match.group()!r}, which would "
                            "forge a message: remove it in preprocess, or use engine 'vllm', to which a "
                            "message's content is plain text"
                        )


def cells_of(messages: Sequence[Mapping[str, Any]], cells: Sequence[Spans | None] | None) -> list[Spans]:
    """Parts of each message's content that come from the row."""
    given = cells if cells is not None else [None] * len(messages)
    return [
        spans if spans is not None else [(0, len(message["content"]))]
        for message, spans in zip(messages, given, strict=True)
    ]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
        for item in value:
            yield from _texts(item)


def _stands_for_unknown_characters(token: Any, tokenizer: Any) -> bool:
    """Whether any row may hold a token, and it says nothing more. Where each byte has a token of its own,
    nothing is unknown, and the token of that name is a control token like others."""
    if token is None or token in [getattr(tokenizer, role, None) for role in _ROLES]:
        return False
    tokens = tokenizer(_UNKNOWN_CHARACTER, add_special_tokens=False)["input_ids"]
    return tokenizer.convert_tokens_to_ids(str(token)) in tokens
