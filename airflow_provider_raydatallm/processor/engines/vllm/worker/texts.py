"""The texts that a request brought, as columns of an answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.processor.columns import one_or_several
from airflow_provider_raydatallm.processor.engines.vllm.reasoning import Split

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput


def text_columns(said: Sequence[CompletionOutput], splits: Sequence[Split] | None) -> dict[str, Any]:
    """
    :param splits: of each text, where reasoning is told from it.
    """
    texts = [
        {
            "text": one.text,
            "finish_reason": one.finish_reason,
            "logprob": one.cumulative_logprob,
            "logprob_tokens": len(one.token_ids) if one.cumulative_logprob is not None else None,
        }
        for one in said
    ]
    if splits is None:
        return one_or_several(texts)
    for text, split in zip(texts, splits, strict=True):
        text |= {"text": split.text, "reasoning": split.reasoning}
    return {**one_or_several(texts), "reasoning_tokens": sum(split.tokens for split in splits)}
