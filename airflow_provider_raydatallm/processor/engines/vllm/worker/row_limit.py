"""Holds a row to a lower limit than its engine's `max_model_len`, as vLLM holds rows to that one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import SamplingParams


def check_length(tokens: Sequence[int], limit: int) -> None:
    """:raises ValueError: in vLLM's words, for a prompt that is longer."""
    if len(tokens) > limit:
        raise ValueError(
            f"the prompt (length {len(tokens)}) is longer than the maximum model length of {limit}"
        )


def within(params: SamplingParams, tokens: Sequence[int], limit: int) -> SamplingParams:
    """Returns parameters that end an answer where the prompt and it reach the limit.

    :raises ValueError: in vLLM's words, when that leaves no token.
    """
    check_length(tokens, limit - 1)
    room = limit - len(tokens)
    if params.max_tokens is not None and params.max_tokens <= room:
        return params
    held = params.clone()
    held.max_tokens = room
    return held
