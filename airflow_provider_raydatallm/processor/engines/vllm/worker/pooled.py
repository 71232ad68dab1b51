"""Requests whose answers are numbers: a vector, or what a head says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.processor.engines.vllm.request.long_text import LONG_TEXT, LongText
from airflow_provider_raydatallm.processor.engines.vllm.request.pooling import POOLING

if TYPE_CHECKING:
    from vllm import PoolingParams, PoolingRequestOutput

    Encode = Callable[[list[int], PoolingParams], Coroutine[Any, Any, PoolingRequestOutput]]


@dataclass(frozen=True)
class PoolingRequest:
    """
    :param long_text: how to cut what is too long; None: the engine refuses it.
    :param params_of_windows: which leave vectors as long as they are, so that their mean is that of the text.
    """

    params: PoolingParams
    long_text: LongText | None
    params_of_windows: PoolingParams

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PoolingRequest:
        from vllm import PoolingParams

        params = value[POOLING]
        long_text = LongText(**value[LONG_TEXT]) if LONG_TEXT in value else None
        of_windows = PoolingParams(**{**params, "use_activation": False})
        return cls(PoolingParams(**params), long_text, of_windows)

    async def answer(self, tokens: list[int], encode: Encode, limit: int) -> dict[str, Any]:
        """Returns columns of `GROUP_SCHEMA`.

        :param encode: asks the engine.
        :param limit: tokens that the model takes at once.
        """
        if self.long_text is not None and len(tokens) > limit:
            windows = self.long_text.windows(tokens, limit)
            outputs = await asyncio.gather(*(encode(window, self.params_of_windows) for window in windows))
            numbers = self.long_text.mean([_numbers(output) for output in outputs], windows)
        else:
            outputs = [await encode(tokens, self.params)]
            numbers = _numbers(outputs[0])
        return {
            "numbers": numbers,
            "finish_reason": "stop",
            "input_tokens": sum(len(output.prompt_token_ids) for output in outputs),
            "output_tokens": 0,
            "cached_tokens": sum(output.num_cached_tokens for output in outputs),
        }


def _numbers(output: PoolingRequestOutput) -> Any:
    return output.outputs.data.float().flatten().numpy()
