"""vLLM's AsyncLLM in a process of its own: batches of token ids in, groups of finished answers out.

It is the part that a GPU waits for, so it does nothing else: prompts come as token ids, and answers leave as
Arrow tables. It knows nothing of slices; whoever calls it keeps count of the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import GROUP_SCHEMA
from airflow_provider_raydatallm.processor.engines.process_guard import ProcessGuard
from airflow_provider_raydatallm.processor.engines.vllm.arguments import SLEEPING_EXECUTOR
from airflow_provider_raydatallm.processor.engines.vllm.startup_log import process_log, startup_seconds
from airflow_provider_raydatallm.processor.ray_runtime.gpus import held_gpus

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

#: Seconds between two groups of one batch, at least; and at most, when few of its rows finish meanwhile.
GROUP_SECONDS = 0.25
_SLOW_GROUP_SECONDS = 1.0
#: A group of so many rows, or of so large a share of its batch, need not wait for more. Where rows repeat,
#: batches are of those few that nobody asked before.
_GROUP_ROWS = 16
_GROUP_SHARE = 1 / 8
_PLENTY = contextlib.nullcontext()


class VllmWorker:
    """One engine. An actor: Ray restarts it when its engine died, and whoever waited for it is told."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """:param arguments: of vLLM's `AsyncEngineArgs`."""
        began = time.monotonic()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        if current_platform.is_cpu():
            arguments = {"distributed_executor_backend": SLEEPING_EXECUTOR, **arguments}
        imported = time.monotonic()
        self._guard = ProcessGuard()
        args = AsyncEngineArgs(**arguments)
        # The defaults of vLLM's offline engine: larger batches than those of its server.
        self._engine = AsyncLLM.from_engine_args(args, usage_context=UsageContext.LLM_CLASS)
        self.start = {
            "worker_imports": imported - began,
            "engine": time.monotonic() - imported,
            **startup_seconds(process_log()),
        }

    async def ready(self) -> dict[str, Any]:
        """When the engine is there: which `process` it is (`node_id`, `pid`), and what its `start` took
        (`Engine.start`)."""
        import ray

        process = {"node_id": ray.get_runtime_context().get_node_id(), "pid": os.getpid()}
        return {"process": process, "start": self.start}

    async def generate(self, batch: pa.Table, user: str = "") -> AsyncGenerator[pa.Table]:
        """Groups of `GROUP_SCHEMA`, as the rows of a batch finish, with the `gpus` that the engine holds.

        :param batch: `tokens` (list of int32) and `params` (JSON text of vLLM's sampling parameters).
        :param user: who asks.
        """
        finished: list[tuple[Any, ...]] = []
        some = asyncio.Event()
        rows = zip(batch.column("tokens").to_pylist(), batch.column("params").to_pylist(), strict=True)
        tasks = [
            asyncio.create_task(self._answer(row, tokens, params, user, finished, some))
            for row, (tokens, params) in enumerate(rows)
        ]
        try:
            left, said = len(tasks), time.monotonic()
            while left:
                await some.wait()
                enough = min(left, max(_GROUP_ROWS, int(len(tasks) * _GROUP_SHARE)))
                await asyncio.sleep(said + GROUP_SECONDS - time.monotonic())
                while len(finished) < enough and time.monotonic() < said + _SLOW_GROUP_SECONDS:
                    await asyncio.sleep(GROUP_SECONDS / 5)
                group, finished[:] = list(finished), []
                some.clear()
                left -= len(group)
                said = time.monotonic()
                columns = zip(*group, strict=True)
                table = pa.table(dict(zip(GROUP_SCHEMA.names, columns, strict=True)), schema=GROUP_SCHEMA)
                yield table.append_column("gpus", pa.array([held_gpus()] * len(group), pa.string()))
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(
        self,
        row: int,
        tokens: list[int],
        params: str,
        user: str,
        finished: list[tuple[Any, ...]],
        some: asyncio.Event,
    ) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        began = time.time()
        try:
            async with self._place(user):
                began = time.time()
                output = await self._finish(tokens, _sampling_params(params))
            answer = output.outputs[0]
            if answer.finish_reason == "abort":  # nobody else aborts: its process was told to end
                raise EngineDeadError
            if answer.finish_reason == "error":
                raise RuntimeError("vLLM could not finish it (finish_reason 'error'); its log says why")
            values: tuple[Any, ...] = (
                answer.text, len(tokens), len(answer.token_ids), output.num_cached_tokens,
                answer.finish_reason, time.time() - began, time.time(), None, None,
            )  # fmt: skip
        except EngineDeadError as e:
            # Nothing can be answered here any more. Ray restarts an actor that dies, not one whose call
            # fails.
            print(f"the engine died: {e}", file=sys.stderr, flush=True)
            os._exit(1)
        except Exception as e:
            cause = e.__cause__ or e
            values = (*[None] * 5, time.time() - began, time.time(), type(cause).__name__, f"{cause}")
        finished.append((row, *values))
        some.set()

    def _place(self, user: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Held while one request is in the engine."""
        return _PLENTY

    async def _finish(self, tokens: list[int], params: SamplingParams) -> RequestOutput:
        prompt: Any = {"type": "token", "prompt_token_ids": tokens}
        async for output in self._engine.generate(prompt, params, uuid.uuid4().hex):
            last = output
        return last

    async def stop(self) -> None:
        self.end()

    def end(self) -> None:
        """End the engine's processes, which would outlive a killed actor, at once: vLLM's own way takes
        seconds, in which a slice would not be published."""
        logging.disable()  # vLLM watches its processes
        self._guard.end()


@lru_cache(1024)
def _sampling_params(text: str) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    given = json.loads(text)
    if shape := given.pop("structured_outputs", None):
        given["structured_outputs"] = StructuredOutputsParams(**shape)
    return SamplingParams(**given, output_kind=RequestOutputKind.FINAL_ONLY)
