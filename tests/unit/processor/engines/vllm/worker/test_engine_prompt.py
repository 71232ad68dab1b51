from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np

from airflow_provider_raydatallm.processor.engines.vllm.worker.engine_prompt import Prompt
from airflow_provider_raydatallm.processor.media.medium import Medium


def test_vllm_gets_pictures_of_the_very_pixels_and_text_goes_past_its_processor() -> None:
    processed: list[Any] = []

    async def process(prompt: Any, arrival_time: float) -> str:
        processed.append(prompt)
        return "rendered"

    engine: Any = SimpleNamespace(renderer=SimpleNamespace(process_for_engine_async=process))
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    media = [Medium("image", (2, 3, 3), memoryview(pixels.tobytes()))] * 2

    async def run() -> tuple[Any, Any]:
        prompt = Prompt([1, 2], media)
        return await prompt.then([3]).render(engine), await Prompt([1, 2]).then([3]).render(engine)

    with_images, text = asyncio.run(run())
    assert (with_images, text) == ("rendered", {"type": "token", "prompt_token_ids": [1, 2, 3]})
    [prompt] = processed
    assert prompt["prompt_token_ids"] == [1, 2, 3]
    assert [np.asarray(image).tolist() for image in prompt["multi_modal_data"]["image"]] == [
        pixels.tolist()
    ] * 2
