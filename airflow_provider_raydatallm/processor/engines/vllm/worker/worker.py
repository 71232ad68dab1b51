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
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec.engine_arguments import with_token_ids
from airflow_provider_raydatallm.processor.adapters.adapter import Adapter
from airflow_provider_raydatallm.processor.columns import GROUP_SCHEMA, describe_error, storable
from airflow_provider_raydatallm.processor.engines.process_guard import ProcessGuard
from airflow_provider_raydatallm.processor.engines.vllm.arguments import CPU_ARGUMENTS
from airflow_provider_raydatallm.processor.engines.vllm.lora import WorkerAdapters
from airflow_provider_raydatallm.processor.engines.vllm.reasoning import ReasoningSplitter
from airflow_provider_raydatallm.processor.engines.vllm.repetition import RepetitionSample
from airflow_provider_raydatallm.processor.engines.vllm.request.adapter import ADAPTER
from airflow_provider_raydatallm.processor.engines.vllm.request.labels.tree import (
    LABELS,
    Branching,
    LabelTree,
)
from airflow_provider_raydatallm.processor.engines.vllm.request.pooling import POOLING
from airflow_provider_raydatallm.processor.engines.vllm.request.reasoning import REASONING
from airflow_provider_raydatallm.processor.engines.vllm.request.transcript import TRANSCRIPT, Transcript
from airflow_provider_raydatallm.processor.engines.vllm.worker.engine_prompt import Prompt
from airflow_provider_raydatallm.processor.engines.vllm.worker.json_grammar import bound
from airflow_provider_raydatallm.processor.engines.vllm.worker.pooled import PoolingRequest
from airflow_provider_raydatallm.processor.engines.vllm.worker.row_limit import check_length, within
from airflow_provider_raydatallm.processor.engines.vllm.worker.startup_log import (
    parse_startup_seconds,
    read_process_log,
)
from airflow_provider_raydatallm.processor.engines.vllm.worker.streams import RowStreams
from airflow_provider_raydatallm.processor.engines.vllm.worker.texts import text_columns
from airflow_provider_raydatallm.processor.engines.vllm.worker.transcripts import transcribe
from airflow_provider_raydatallm.processor.media.medium import Medium, from_array
from airflow_provider_raydatallm.processor.ray_runtime.gpus import held_gpus
from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log

if TYPE_CHECKING:
    from vllm import PoolingParams, PoolingRequestOutput, RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest

logger = logging.getLogger(__name__)


class VllmWorker:
    """One engine, as an actor. It ends when its engine dies, and its callers see that."""

    def __init__(self, arguments: dict[str, Any], adapters: Sequence[Adapter] = ()) -> None:
        """
        :param arguments: of vLLM's `AsyncEngineArgs`.
        :param adapters: that rows may name.
        """
        began = time.monotonic()
        start_log()
        self._adapters = WorkerAdapters(adapters)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError

        if current_platform.is_cpu():
            arguments = {**CPU_ARGUMENTS, **arguments}
        self._dead_error = EngineDeadError
        imported = time.monotonic()
        self._streams = RowStreams()
        self._repetition = RepetitionSample()
        self._guard = ProcessGuard()
        # With the defaults of vLLM's offline engine, whose batches are larger than its server's.
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS
        )
        parser = arguments.get("reasoning_parser")
        self._reasoning = ReasoningSplitter(parser, self._engine.get_tokenizer()) if parser else None
        self._shows_control_tokens = self._reasoning is not None and self._reasoning.shows_control_tokens
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

    async def idle_s(self) -> float:
        return self._streams.idle_s

    async def generate(
        self, rows: pa.Table, feeder: str = "", user: str = "", limit: int | None = None
    ) -> AsyncGenerator[pa.Table]:
        """Yields groups of `GROUP_SCHEMA`, with the `gpus` of the engine, as the rows of a feeder finish,
        until all are or its next call takes over (`RowStreams`).

        :param rows: `row` (its id with this feeder), `tokens` (list of int32), `params` (JSON text of
            vLLM's sampling parameters, and of the row's adapter) and, where rows have any, `media`
            (`MEDIUM_TYPE`).
        :param user: who shares the engine's slots with others.
        :param limit: tokens of a prompt plus its answer, where these rows have a lower one than the engine.
        """
        held: dict[str, Any] = {} if limit is None else {"limit": limit}
        columns = (rows.column(name).to_pylist() for name in ("row", "tokens", "params"))
        shown: list[dict[str, Any]] = [{}] * rows.num_rows
        if "media" in rows.schema.names:
            shown = [{"media": media} for media in from_array(rows.column("media"))]
        started = [
            (row, partial(self._generate_row, tokens, params, user, **media, **held))
            for row, tokens, params, media in zip(*columns, shown, strict=True)
        ]
        async for group in self._streams.groups(feeder, started):
            answers = [{"row": row, **answer} for row, answer in group]
            table = pa.Table.from_pylist(answers, schema=GROUP_SCHEMA)
            yield table.append_column("gpus", pa.array([held_gpus()] * len(group), pa.string()))

    async def cancel(self, feeder: str, rows: list[int]) -> None:
        """Cancels rows that another worker has answered."""
        self._streams.cancel(feeder, rows)

    async def _generate_row(
        self,
        tokens: list[int],
        params: str,
        user: str,
        *,
        media: Sequence[Medium] = (),
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Columns of `GROUP_SCHEMA`; those that are left out are null."""
        began = time.time()
        prompt = Prompt(tokens, media, limit)
        try:
            request, adapter = _parse_request(params, self._shows_control_tokens)
            lora = await self._adapters.load(self._engine, adapter)
            async with self._slot(user):
                began = time.time()
                if isinstance(request, PoolingRequest):
                    most = limit or self._engine.model_config.max_model_len
                    answer = await request.answer(tokens, partial(self._encode, limit=limit), most)
                elif isinstance(request, LabelTree):
                    answer = await self._compare_labels(prompt, request, lora)
                elif isinstance(request, Transcript):
                    ask = partial(self._final_output, lora=lora)
                    answer = await transcribe(prompt, request, ask, self._engine.model_config.max_model_len)
                else:
                    answer = await self._generate_texts(prompt, request, lora)
            return {**answer, "engine_seconds": time.time() - began, "finished_at": time.time()}
        except self._dead_error as e:
            # Callers of an actor that dies know that all its rows are lost.
            logger.error("the engine died: %s%s", e, _ended_processes(self._engine))
            os._exit(1)
        except Exception as e:
            cause = e.__cause__ or e
            return {
                "engine_seconds": time.time() - began,
                "finished_at": time.time(),
                "error_type": type(cause).__name__,
                "error": storable(describe_error(cause)),
            }

    def _slot(self, user: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Held while a request is in the engine."""
        return contextlib.nullcontext()

    async def _generate_texts(
        self, prompt: Prompt, request: _Generate, lora: LoRARequest | None
    ) -> dict[str, Any]:
        output = await self._final_output(prompt, request.params, lora, **request.options)
        for said in output.outputs:
            self._repetition.add(prompt.tokens, said.token_ids)
        splits = None
        if self._reasoning is not None and request.template is not None:
            splits = [
                self._reasoning.split(
                    said.text, said.token_ids, request.template,
                    is_shaped=request.params.structured_outputs is not None,
                )
                for said in output.outputs
            ]  # fmt: skip
        return {
            **text_columns(output.outputs, splits),
            "input_tokens": len(output.prompt_token_ids or ()),
            "output_tokens": sum(len(said.token_ids) for said in output.outputs),
            "cached_tokens": output.num_cached_tokens,
        }

    async def _compare_labels(
        self, prompt: Prompt, tree: LabelTree, lora: LoRARequest | None
    ) -> dict[str, Any]:
        """The answer's numbers are the labels' probabilities."""

        def ask(request: Branching) -> Coroutine[Any, Any, RequestOutput]:
            return self._final_output(prompt.then(request.prefix), _compare_tokens(request.tokens), lora)

        outputs: dict[int, RequestOutput] = {}
        logprobs: dict[int, list[float]] = {}
        while numbers := tree.next_requests(logprobs):
            asked = await asyncio.gather(*(ask(tree.requests[number]) for number in numbers))
            for number, output in zip(numbers, asked, strict=True):
                [of_tokens] = output.outputs[0].logprobs
                outputs[number] = output
                logprobs[number] = [of_tokens[token].logprob for token in tree.requests[number].tokens]
        return {
            "numbers": tree.probabilities(logprobs), "finish_reason": "stop",
            "input_tokens": sum(len(output.prompt_token_ids or ()) for output in outputs.values()),
            "output_tokens": len(outputs),
            "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs.values()),
        }  # fmt: skip

    async def _encode(
        self, tokens: list[int], params: PoolingParams, *, limit: int | None
    ) -> PoolingRequestOutput:
        if limit is not None:
            check_length(tokens, limit)
        prompt: Any = {"type": "token", "prompt_token_ids": tokens}
        async for output in self._engine.encode(prompt, params, uuid.uuid4().hex):
            last = output
        if not last.finished:  # only an engine that was told to end aborts rows
            raise self._dead_error
        return last

    async def _final_output(
        self, prompt: Prompt, params: SamplingParams, lora: LoRARequest | None, **options: Any
    ) -> RequestOutput:
        if prompt.limit is not None:
            params = within(params, prompt.tokens, prompt.limit)
        rendered = await prompt.render(self._engine)
        request = self._engine.generate(rendered, params, uuid.uuid4().hex, lora_request=lora, **options)
        async for output in request:
            last = output
        finish_reasons = {said.finish_reason for said in last.outputs}
        if "abort" in finish_reasons:  # only an engine that was told to end aborts rows
            raise self._dead_error
        if "error" in finish_reasons:
            raise RuntimeError(
                "vLLM could not finish the request (finish_reason 'error'): see the worker's log"
            )
        return last

    async def stop(self) -> RepetitionSample:
        """Ends the engine. Returns what its answers had of their prompts."""
        self.kill_processes()
        return self._repetition

    def kill_processes(self) -> None:
        """Kills the engine's processes, which would outlive a killed actor. vLLM's own way takes seconds,
        which would delay the slice's publication."""
        logging.disable()  # vLLM watches its processes
        self._guard.kill()


@dataclass(frozen=True)
class _Generate:
    """
    :param template: arguments of the chat template, where the reasoning is to be told from the answer.
    """

    params: SamplingParams
    template: dict[str, Any] | None

    @property
    def options(self) -> dict[str, Any]:
        """vLLM's, by which it knows when a grammar begins to hold."""
        kwargs = {"chat_template_kwargs": self.template}
        return {"reasoning_parser_kwargs": kwargs} if self.template else {}


def _ended_processes(engine: Any) -> str:
    """In vLLM's own words which processes of an engine ended, and how: it says so only of one that starts.
    "" where it cannot be asked."""
    with contextlib.suppress(Exception):
        return f" Failed core proc(s): {engine.engine_core.resources.engine_manager.finished_procs()}"
    return ""


@lru_cache(1024)
def _parse_request(
    text: str, shows_control_tokens: bool
) -> tuple[_Generate | LabelTree | PoolingRequest | Transcript, str | None]:
    """Returns also the digest of its adapter, if it has one.

    :param shows_control_tokens: whether texts that a model writes hold them.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import (
        RepetitionDetectionParams,
        RequestOutputKind,
        StructuredOutputsParams,
    )

    params = json.loads(text)
    adapter = params.pop(ADAPTER, None)
    if POOLING in params:
        return PoolingRequest.from_json(params), adapter
    if LABELS in params:
        return LabelTree.from_json(params[LABELS]), adapter
    if TRANSCRIPT in params:
        return Transcript(**params[TRANSCRIPT]), adapter
    template = params.pop(REASONING, None)
    shape = params.pop("structured_outputs", None)
    if shows_control_tokens:
        params["skip_special_tokens"] = False
    try:
        structured = StructuredOutputsParams(**bound(params, shape)) if shape else None
        if repetition := params.get("repetition_detection"):
            params["repetition_detection"] = RepetitionDetectionParams(**repetition)
        sampling = SamplingParams(
            **with_token_ids(params),
            structured_outputs=structured,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
    except Exception as e:  # its own and Python's, of a row's own values
        raise InvalidSamplingParams(f"sampling_params {params}: {e}") from None
    return _Generate(sampling, template), adapter


class InvalidSamplingParams(ValueError):
    """A row's own parameters are none of vLLM's."""


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
