"""A row's prompt as vLLM's engine takes it.

vLLM puts an image's patches together, and as many tokens in place of its placeholder, or the frequencies of a
recording, in the process of its front end, which is the worker's; it does so on a thread of its own. Decoding
and resizing are done by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_provider_raydatallm.processor.media.audio import SAMPLE_RATE
from airflow_provider_raydatallm.processor.media.medium import Medium

if TYPE_CHECKING:
    from PIL.Image import Image
    from vllm.v1.engine.async_llm import AsyncLLM


@dataclass(frozen=True)
class Prompt:
    """
    :param limit: tokens of it plus its answer, where it is lower than the engine's.
    """

    tokens: list[int]
    media: Sequence[Medium] = ()
    limit: int | None = None

    def then(self, tokens: Sequence[int]) -> Prompt:
        return replace(self, tokens=[*self.tokens, *tokens])

    def pieces(self) -> list[Prompt]:
        """The same prompt for each of its media."""
        return [replace(self, media=[medium]) for medium in self.media]

    async def render(self, engine: AsyncLLM) -> Any:
        """:raises ValueError: for media that the model does not take."""
        if not self.media:
            return {"type": "token", "prompt_token_ids": self.tokens}
        data = await asyncio.to_thread(_as_vllm_takes_them, self.media)
        prompt: Any = {"prompt_token_ids": self.tokens, "multi_modal_data": data}
        return await engine.renderer.process_for_engine_async(prompt, time.time())


def _as_vllm_takes_them(media: Sequence[Medium]) -> dict[str, list[Any]]:
    by_kind: dict[str, list[Any]] = {}
    for medium in media:
        as_vllm_takes_it = {"image": _as_image, "audio": _as_audio}[medium.kind]
        by_kind.setdefault(medium.kind, []).append(as_vllm_takes_it(medium))
    return by_kind


def _as_image(medium: Medium) -> Image:
    from PIL.Image import frombuffer

    height, width, _ = medium.shape
    return frombuffer("RGB", (width, height), medium.data, "raw", "RGB", 0, 1)


def _as_audio(medium: Medium) -> tuple[np.ndarray, int]:
    return np.frombuffer(medium.data, np.int16).astype(np.float32) / (1 << 15), SAMPLE_RATE
