"""Has Whisper write down a recording, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.processor.engines.vllm.request.transcript import Transcript
from airflow_provider_raydatallm.processor.engines.vllm.worker.engine_prompt import Prompt

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

    Ask = Callable[[Prompt, SamplingParams], Coroutine[Any, Any, RequestOutput]]


async def transcribe(prompt: Prompt, request: Transcript, ask: Ask, positions: int) -> dict[str, Any]:
    """Returns columns of `GROUP_SCHEMA`. All pieces are in the language of the first.

    :param ask: asks the engine.
    :param positions: of the model, for the prompt and what it writes.

    :raises ValueError: when the prompt leaves none to write. vLLM 0.26 looks at no length of Whisper's
        prompts: on a GPU a longer one ends the engine.
    """
    length = len(prompt.tokens) + (1 + len(request.then) if request.languages else 0)
    if length >= positions:
        raise ValueError(
            f"the words before and what asks for a transcript have {length:,} tokens, longer than the "
            f"maximum of {positions - 1:,}: shorten the prompt"
        )
    pieces, language = prompt.pieces(), []
    if request.languages:
        chosen = await ask(pieces[0], _choose_token(tuple(request.languages)))
        language = list(chosen.outputs[0].token_ids)
        pieces = [piece.then([*language, *request.then]) for piece in pieces]
    written = await asyncio.gather(*(ask(piece, _write_all()) for piece in pieces))
    said = [output.outputs[0] for output in written]
    return {
        "text": " ".join(filter(None, (one.text.strip() for one in said))),
        "finish_reason": "length" if any(one.finish_reason == "length" for one in said) else "stop",
        "input_tokens": sum(len(output.prompt_token_ids or ()) for output in written),
        "output_tokens": len(language) + sum(len(one.token_ids) for one in said),
        "cached_tokens": sum(output.num_cached_tokens or 0 for output in written),
    }


@lru_cache(1)
def _write_all() -> SamplingParams:
    """Of a request that may take all positions of the model."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(max_tokens=None, temperature=0, output_kind=RequestOutputKind.FINAL_ONLY)


@lru_cache(16)
def _choose_token(tokens: tuple[int, ...]) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0,
        allowed_token_ids=list(tokens),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
