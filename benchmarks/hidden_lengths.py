"""Answers whose length is fixed beforehand, and which the engine either knows or does not.

A benchmark's model has random weights or none: no answer ends by itself, so `max_tokens` decides its length,
and an engine could order rows by it. To hide the length, all rows get the same `max_tokens`, and each row's
own stands in `extra_args`, which vLLM ignores and these workers read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker

#: Whether the engine knows how long an answer will be.
LENGTHS = ("unknown", "known")
#: Of `hide_lengths`.
HIDDEN = "hidden"


def hide_lengths(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the rows with a column that hides their `answer_tokens`, and the sampling parameters of a spec
    for them."""
    longest = max(row["answer_tokens"] for row in rows)
    hidden = [{**row, HIDDEN: {"length": row["answer_tokens"]}} for row in rows]
    return hidden, {"max_tokens": longest, "extra_args": f"{{{HIDDEN}}}"}


@lru_cache(10_000)
def length_of(params: str) -> int:
    """:param params: JSON text of sampling parameters."""
    parsed = json.loads(params)
    length: int = (parsed.get("extra_args") or {}).get("length") or parsed["max_tokens"]
    return length


@lru_cache(10_000)
def _with_own_length(params: str) -> str:
    parsed = json.loads(params)
    parsed.pop("extra_args", None)
    return json.dumps({**parsed, "max_tokens": length_of(params)})


class _HiddenLengthsWorker(VllmWorker):
    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        return await super()._generate_row(tokens, _with_own_length(params), user)


class HiddenLengthsEngine(VllmEngine):
    """vLLM, with rows of `hide_lengths`."""

    worker = _HiddenLengthsWorker
