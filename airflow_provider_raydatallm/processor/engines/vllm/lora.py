"""Adapters as vLLM takes them: its arguments, and how a worker loads one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.adapters.adapter import Adapter, lora_ids
from airflow_provider_raydatallm.processor.adapters.node_copies import copy_of
from airflow_provider_raydatallm.processor.adapters.slice_adapters import COPIES_AT_ONCE

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

#: vLLM's values of max_lora_rank; 0.26 and 0.29 have them.
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
#: Adapters of a batch: each takes GPU memory beside the weights. Others wait in the node's memory.
_MOST_AT_ONCE = 4
_MOST_IN_MEMORY = 32


def lora_arguments(
    adapters: Sequence[Adapter], engine_kwargs: Mapping[str, Any], *, on_cpu: bool
) -> dict[str, Any]:
    """Returns vLLM's arguments for these adapters, with the job's own in place of the defaults.

    :raises SliceError: when the job's own do not hold them.
    """
    if not adapters:
        return {}
    contents = len({adapter.digest for adapter in adapters})
    largest = max(adapters, key=lambda adapter: adapter.rank)
    rank = engine_kwargs.get("max_lora_rank", next(r for r in _RANKS if r >= largest.rank))
    if isinstance(rank, int) and rank < largest.rank:
        raise SliceError(
            f"engine.kwargs['max_lora_rank'] is {rank}, and {largest} has rank {largest.rank}",
            kind="input",
            advice="Leave it out",
        )
    at_once = engine_kwargs.get("max_loras", min(contents, _MOST_AT_ONCE))
    if on_cpu:
        # vLLM's CPU kernels give rows without an adapter the last place (index -1), which stays empty so.
        at_once = max(at_once, contents + 1)
    in_memory = max(at_once, min(contents, _MOST_IN_MEMORY))
    return {
        "enable_lora": True,
        "max_lora_rank": rank,
        "max_loras": at_once,
        "max_cpu_loras": engine_kwargs.get("max_cpu_loras", in_memory),
    }


class WorkerAdapters:
    """The adapters of a worker, which vLLM loads when a row first needs them. One that it cannot load fails
    its rows, whereas it would end the engine if it came with a row."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        """Copies those that this node does not have.

        :raises SliceError: naming one that cannot be copied.
        """
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            copies = list(pool.map(copy_of, adapters))
        self._copies = {adapter.digest: copy for adapter, copy in zip(adapters, copies, strict=True)}
        self._names = {adapter.digest: str(adapter) for adapter in adapters}
        self._ids = lora_ids(self._copies)
        self._loaded: dict[str, asyncio.Task[LoRARequest]] = {}

    async def load(self, engine: AsyncLLM, digest: str | None) -> LoRARequest | None:
        """Returns what a request of vLLM's names; None for the model itself.

        :raises ValueError: when vLLM cannot load the adapter.
        """
        if digest is None:
            return None
        if digest not in self._loaded:
            self._loaded[digest] = asyncio.create_task(self._load(engine, digest))
        return await asyncio.shield(self._loaded[digest])  # other rows wait for it too

    async def _load(self, engine: AsyncLLM, digest: str) -> LoRARequest:
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError

        # By its name vLLM tells prefixes apart that it caches.
        request = LoRARequest(digest, self._ids[digest], str(self._copies[digest]))
        try:
            await engine.add_lora(request)
        except EngineDeadError:
            raise
        except Exception as e:
            raise ValueError(f"vLLM cannot load {self._names[digest]}: {e}") from None
        return request
