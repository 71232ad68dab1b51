from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.vllm.request.transcript import Transcript
from airflow_provider_raydatallm.processor.engines.vllm.worker.engine_prompt import Prompt
from airflow_provider_raydatallm.processor.engines.vllm.worker.transcripts import transcribe
from airflow_provider_raydatallm.processor.media.medium import Medium
from airflow_provider_raydatallm.processor.request.answers import parser

ONE_LANGUAGE = Transcript(9, [1, 2], [], [])
MANY_LANGUAGES = Transcript(9, [1], [5, 6], [3, 4])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "words", "is_asked"),
    [
        (ONE_LANGUAGE, 17, True),
        (ONE_LANGUAGE, 18, False),
        (MANY_LANGUAGES, 15, True),
        (MANY_LANGUAGES, 16, False),
    ],
)
def test_prompt_that_leaves_no_position_to_write_never_reaches_the_engine(
    request_: Transcript, words: int, is_asked: bool
) -> None:
    """In vLLM 0.26 it ends the engine of a GPU."""
    lengths = []

    async def ask(prompt: Prompt, params: Any) -> Any:
        lengths.append(len(prompt.tokens))
        said = SimpleNamespace(text="hello", finish_reason="stop", token_ids=[5])
        return SimpleNamespace(outputs=[said], prompt_token_ids=prompt.tokens, num_cached_tokens=0)

    media = [Medium("audio", b"", (0,))]
    call = transcribe(Prompt(request_.prompt([7] * words), media), request_, ask, positions=21)
    if is_asked:
        assert asyncio.run(call)["text"] == "hello"
        assert max(lengths) == 20
    else:
        with pytest.raises(ValueError, match="21 tokens, longer than the maximum of 20") as refused:
            asyncio.run(call)
        assert parser._TOO_LONG.search(str(refused.value))
        assert lengths == []
