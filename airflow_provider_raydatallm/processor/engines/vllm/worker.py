"""vLLM's AsyncLLM in a process of its own: rows of token ids in, groups of finished answers out.

The GPU waits for this process, so it does nothing else: prompts come as token ids, and answers leave as Arrow
tables. It knows nothing of slices; its callers keep count of the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import GROUP_SCHEMA, describe_error, storable
from airflow_provider_raydatallm.processor.engines.process_guard import ProcessGuard
from airflow_provider_raydatallm.processor.engines.vllm.arguments import SLEEPING_EXECUTOR
from airflow_provider_raydatallm.processor.engines.vllm.request.label_tree import LABELS, Branching, LabelTree
from airflow_provider_raydatallm.processor.engines.vllm.request.pooling import POOLING
from airflow_provider_raydatallm.processor.engines.vllm.startup_log import (
    parse_startup_seconds,
    read_process_log,
)
from airflow_provider_raydatallm.processor.engines.vllm.streams import RowStreams
from airflow_provider_raydatallm.processor.ray_runtime.gpus import held_gpus
from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log

if TYPE_CHECKING:
    from vllm import PoolingParams, RequestOutput, SamplingParams

logger = logging.getLogger(__name__)


class VllmWorker:
    """One engine, as an actor. It ends when its engine dies, and its callers see that."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """:param arguments: of vLLM's `AsyncEngineArgs`."""
        began = time.monotonic()
        start_log()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError

        if current_platform.is_cpu():
            arguments = {"distributed_executor_backend": SLEEPING_EXECUTOR, **arguments}
        self._dead_error = EngineDeadError
        imported = time.monotonic()
        self._streams = RowStreams()
        self._guard = ProcessGuard()
        # With the defaults of vLLM's offline engine, whose batches are larger than its server's.
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS
        )
        self.startup_seconds = {
            "worker_imports": imported - began,
            "engine": time.monotonic() - imported,
            **parse_startup_seconds(read_process_log()),
        }

    async def ready(self) -> dict[str, Any]:
        """Returns when the engine has started: its `process` (`node_id`, `pid`) and `startup_seconds`."""
        import ray

        process = {"node_id": ray.get_runtime_context().get_node_id(), "pid": os.getpid()}
        return {"process": process, "startup_seconds": self.startup_seconds}

    async def wait_forever(self) -> None:
        """Ends, with an error, when the worker does."""
        await asyncio.Event().wait()

    async def is_alive(self) -> bool:
        """Returns when vLLM's own process answers, which it does between two steps."""
        await self._engine.is_sleeping()
        return True

    async def generate(self, rows: pa.Table, feeder: str = "", user: str = "") -> AsyncGenerator[pa.Table]:
        """Yields groups of `GROUP_SCHEMA`, with the `gpus` of the engine, as the rows of a feeder finish,
        until all are or its next call takes over (`RowStreams`).

        :param rows: `row` (its id with this feeder), `tokens` (list of int32) and `params` (JSON text of
            vLLM's sampling parameters).
        :param user: who shares the engine's slots with others.
        """
        columns = (rows.column(name).to_pylist() for name in ("row", "tokens", "params"))
        started = [
            (row, partial(self._generate_row, tokens, params, user))
            for row, tokens, params in zip(*columns, strict=True)
        ]
        async for group in self._streams.groups(feeder, started):
            answers = zip(*((row, *answer) for row, answer in group), strict=True)
            table = pa.table(dict(zip(GROUP_SCHEMA.names, answers, strict=True)), schema=GROUP_SCHEMA)
            yield table.append_column("gpus", pa.array([held_gpus()] * len(group), pa.string()))

    async def cancel(self, feeder: str, rows: list[int]) -> None:
        """Cancels rows that another worker has answered."""
        self._streams.cancel(feeder, rows)

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> tuple[Any, ...]:
        """The columns of `GROUP_SCHEMA` after `row`."""
        began = time.time()
        try:
            request = _parse_request(params)
            async with self._slot(user):
                began = time.time()
                if isinstance(request, _Pooling):
                    answer = await self._pool(tokens, request.params)
                elif isinstance(request, LabelTree):
                    answer = await self._compare_labels(tokens, request)
                else:
                    answer = await self._generate_text(tokens, request)
            return (*answer, time.time() - began, time.time(), None, None)
        except self._dead_error as e:
            # Callers of an actor that dies know that all its rows are lost.
            logger.error("the engine died: %s", e)
            os._exit(1)
        except Exception as e:
            cause = e.__cause__ or e
            return (
                *[None] * 6,
                time.time() - began,
                time.time(),
                type(cause).__name__,
                storable(describe_error(cause)),
            )

    def _slot(self, user: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Held while a request is in the engine."""
        return contextlib.nullcontext()

    async def _generate_text(self, tokens: list[int], params: SamplingParams) -> tuple[Any, ...]:
        output = await self._final_output(tokens, params)
        said = output.outputs[0]
        return (
            said.text, None, said.finish_reason,
            len(tokens), len(said.token_ids), output.num_cached_tokens,
        )  # fmt: skip

    async def _compare_labels(self, tokens: list[int], tree: LabelTree) -> tuple[Any, ...]:
        """The answer's numbers are the labels' probabilities."""

        def ask(request: Branching) -> Coroutine[Any, Any, RequestOutput]:
            return self._final_output([*tokens, *request.prefix], _compare_tokens(request.tokens))

        outputs = [await ask(tree.requests[0])]  # its prompt is in the prefix cache then
        outputs += await asyncio.gather(*map(ask, tree.requests[1:]))
        logprobs = [
            [output.outputs[0].logprobs[0][token].logprob for token in request.tokens]
            for output, request in zip(outputs, tree.requests, strict=True)
        ]
        return (
            None, tree.probabilities(logprobs), "stop",
            len(tokens), len(outputs), outputs[0].num_cached_tokens,
        )  # fmt: skip

    async def _pool(self, tokens: list[int], params: PoolingParams) -> tuple[Any, ...]:
        """The answer's numbers are a vector, or what a head says."""
        prompt: Any = {"type": "token", "prompt_token_ids": tokens}
        async for output in self._engine.encode(prompt, params, uuid.uuid4().hex):
            last = output
        if not last.finished:  # only an engine that was told to end aborts rows
            raise self._dead_error
        return (
            None, last.outputs.data.float().flatten().numpy(), "stop",
            len(tokens), 0, last.num_cached_tokens,
        )  # fmt: skip

    async def _final_output(self, tokens: list[int], params: SamplingParams) -> RequestOutput:
        prompt: Any = {"type": "token", "prompt_token_ids": tokens}
        async for output in self._engine.generate(prompt, params, uuid.uuid4().hex):
            last = output
        finish_reason = last.outputs[0].finish_reason
        if finish_reason == "abort":  # only an engine that was told to end aborts rows
            raise self._dead_error
        if finish_reason == "error":
            raise RuntimeError(
                "vLLM could not finish the request (finish_reason 'error'): see the worker's log"
            )
        return last

    async def stop(self) -> None:
        self.kill_processes()

    def kill_processes(self) -> None:
        """Kills the engine's processes, which would outlive a killed actor. vLLM's own way takes seconds,
        which would delay the slice's publication."""
        logging.disable()  # vLLM watches its processes
        self._guard.kill()


@dataclass(frozen=True)
class _Pooling:
    params: PoolingParams


@lru_cache(1024)
def _parse_request(text: str) -> SamplingParams | LabelTree | _Pooling:
    from vllm import PoolingParams, SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    params = json.loads(text)
    if POOLING in params:
        return _Pooling(PoolingParams(**params[POOLING]))
    if LABELS in params:
        return LabelTree.from_json(params[LABELS])
    if shape := params.pop("structured_outputs", None):
        params["structured_outputs"] = StructuredOutputsParams(**shape)
    return SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)


@lru_cache(1024)
def _compare_tokens(tokens: tuple[int, ...]) -> SamplingParams:
    """Of a request that asks how probable tokens are. Which one is sampled does not matter."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0,
        detokenize=False,
        logprob_token_ids=list(tokens),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
