"""Ray Data LLM's own processor with vLLM: the engine for every model and modality that Ray Data LLM has.

Its stages (chat template, tokenize, vLLM, detokenize) are actors that hold a logical CPU each. On a cluster
with too few CPUs for them they would wait forever, so `resources` counts them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engine_arguments import with_token_ids
from airflow_provider_raydatallm.contract.spec.engines.ray_data_llm import RayDataLlm
from airflow_provider_raydatallm.contract.spec.parallel import Parallel
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS, describe_error, storable
from airflow_provider_raydatallm.processor.engines.base import AnswerSink
from airflow_provider_raydatallm.processor.engines.control_tokens import ControlTokenSet
from airflow_provider_raydatallm.processor.engines.vllm.arguments import CPU_ARGUMENTS
from airflow_provider_raydatallm.processor.engines.vllm.engine_base import VllmEngineBase
from airflow_provider_raydatallm.processor.sizing.sizes import engine_batch_size

if TYPE_CHECKING:
    import ray.data

#: Ray Data LLM's column for a row's error; "" for a row without one.
_ERROR = "__inference_error__"
#: Column with the request's `cells`, as JSON.
_CELLS = "__cells"
#: Tokens between two outputs of a row; only the last output is used.
_NO_STREAM = 4096
#: Rows of a batch: one H200 made 947 short rows/s with it, and 810 with 128.
_BATCH = 256
#: Arguments of `build_processor` itself.
_MAP_KWARGS = ("preprocess_map_kwargs", "postprocess_map_kwargs")
#: Options that a job sets by other arguments, or that the provider's guarantees depend on.
_RESERVED = {
    "model_source", "engine_kwargs", "task_type", "accelerator_type", "concurrency", "batch_size",
    "max_concurrent_batches", "should_continue_on_error",
}  # fmt: skip
#: Tokens of a step: vLLM's default for offline inference.
_STEP_TOKENS = 8192


class RayDataLLM(VllmEngineBase):
    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        _check_options(job.engine_as(RayDataLlm).processor)
        if self.parallel.data * self.parallel.context > 1:
            raise SliceError(
                f"engine.kwargs ask for {self.parallel}, and Ray Data LLM reserves only tensor x pipeline "
                "parallel GPUs for a worker",
                kind="input",
                advice="Omit the others and raise engine.workers, or set engine='vllm'",
            )

    @cached_property
    def parallel(self) -> Parallel:
        parallel = super().parallel
        uses_default = (
            "distributed_executor_backend" not in self.job.engine.arguments
        )  # Ray's, for several GPUs
        return replace(parallel, on_ray=parallel.on_ray or (uses_default and parallel.gpus > 1))

    @property
    def cpu_actors(self) -> tuple[int, int]:
        """The stages' actors; on GPUs twice as many, with half a CPU each."""
        each = 1 if self.on_cpu else 3
        return each * self.workers[0], each * self.workers[1]

    def default_batch_size(self) -> int:
        return engine_batch_size(self.rows, self.workers[1], _BATCH)

    def gpus_held(self, workers: int | None) -> float | None:
        low, high = self.workers  # how far a pool has scaled is not known
        return self.sizes.gpus[0] if low == high and not self.on_cpu else None

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        from ray.data import llm

        job = self.job
        kwargs: dict[str, Any] = dict(self.engine_kwargs)
        options: dict[str, Any] = {}
        template: dict[str, Any] = {
            "concurrency": (1, self.workers[1]),
            "chat_template_kwargs": job.task_as(Generate).chat_template_kwargs or None,
        }
        if self.on_cpu:
            # The engine's process tokenizes: two processes fewer import torch and vLLM.
            options |= {"tokenize_stage": False, "detokenize_stage": False}
            options["placement_group_config"] = {"bundles": [{"CPU": 1}]}
            options["runtime_env"] = {"env_vars": self.env}
            if self.gpus_per_worker == 1:  # for more, Ray Data LLM uses Ray's executor
                kwargs = {**CPU_ARGUMENTS, **kwargs}
        else:
            options["accelerator_type"] = job.engine.gpu
            # One actor per stage, one output object per token and the small steps of vLLM's server would
            # each starve a large GPU.
            kwargs.setdefault("stream_interval", _NO_STREAM)
            kwargs.setdefault("max_num_batched_tokens", max(_STEP_TOKENS, self.sizes.max_num_seqs))
            pool = {"concurrency": (2 * self.workers[0], 2 * self.workers[1]), "num_cpus": 0.5}
            template |= pool
            options |= {"tokenize_stage": pool, "detokenize_stage": pool}
        options["log_engine_metrics"] = False  # a quarter of the time of the engine's only thread
        kwargs.setdefault("disable_log_stats", True)
        options = {"chat_template_stage": template, **options, **job.engine_as(RayDataLlm).processor}
        map_kwargs = {name: options.pop(name) for name in _MAP_KWARGS if name in options}
        config = llm.vLLMEngineProcessorConfig(
            model_source=os.path.expanduser(job.model_source),
            engine_kwargs=kwargs,
            concurrency=self.workers,
            batch_size=self.batch_size,
            max_concurrent_batches=self.batches,
            should_continue_on_error=True,
            **options,
        )
        processor = llm.build_processor(config, preprocess=_to_request, **map_kwargs)
        # Ray Data LLM itself continues after a failed row in its engine stage only, and gives such rows
        # another schema.
        for name in ("ChatTemplateStage", "TokenizeStage"):
            if name in processor.list_stage_names():
                stage = processor.get_stage_by_name(name)
                stage.fn = _row_by_row(stage.fn, refuse_control_tokens=name == "ChatTemplateStage")
        name = "vLLMEngineStage"
        stage = processor.get_stage_by_name(name)
        # A copy: an assignment would have the stage choose its resources once more, without those asked for.
        processor.stages[name] = stage.model_copy(update={"fn": _with_sampling_params(stage.fn)})
        processor.postprocess = partial(_to_answer, data_column=processor.DATA_COLUMN)
        return deliver.deliver_blocks(processor(requests))


def _check_options(processor_kwargs: Mapping[str, Any]) -> None:
    """:raises SliceError: for unknown options, and those that other arguments set."""
    if not processor_kwargs:
        return
    from ray.data.llm import vLLMEngineProcessorConfig

    known = {*vLLMEngineProcessorConfig.model_fields, *_MAP_KWARGS} - _RESERVED
    if unknown := sorted(processor_kwargs.keys() - known):
        is_reserved = unknown[0] in _RESERVED
        why = "set by another argument" if is_reserved else f"not one of {', '.join(sorted(known))}"
        raise SliceError(f"engine.processor[{unknown[0]!r}] is {why}", kind="input")


def _to_request(row: dict[str, Any]) -> dict[str, Any]:
    request = json.loads(row.pop("__request"))
    return {
        "messages": request["messages"],
        "sampling_params": json.dumps(request["sampling_params"]),  # see `_with_sampling_params`
        _CELLS: json.dumps(request.get("cells")),
    }


def _to_answer(row: dict[str, Any], *, data_column: str) -> dict[str, Any]:
    row = row[data_column]
    error = row.get(_ERROR) or None
    # Ray Data LLM does not report the other fields.
    answer: dict[str, Any] = dict.fromkeys(f.name for f in ANSWER_FIELDS)
    answer |= {name: row[name] for name in ("__unit", "__offset", "__row") if name in row}
    answer |= {"finished_at": time.time(), "error_type": error and error.partition(":")[0], "error": error}
    if not error:
        answer |= {
            "text": row["generated_text"],
            "input_tokens": row["num_input_tokens"],
            "output_tokens": row["num_generated_tokens"],
            "engine_seconds": row["time_taken_llm"],
        }
    return answer


def _with_sampling_params(stage: type[Any]) -> type[Any]:
    """vLLM's stage, to which rows bring their parameters as JSON. In an Arrow struct, each row would have the
    parameters of all others too, as nulls, and none could have numbers as keys."""

    class WithSamplingParams(stage):  # type: ignore[misc]
        async def udf(self, batch: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
            rows = [
                {**row, "sampling_params": with_token_ids(json.loads(row["sampling_params"]))}
                for row in batch
            ]
            async for output in stage.udf(self, rows):
                yield output

    return WithSamplingParams


def _row_by_row(stage: type[Any], *, refuse_control_tokens: bool) -> type[Any]:
    """A stage that marks rows that fail in it, which later stages then skip, and processes the others.

    :param refuse_control_tokens: rows whose text spells a control token fail too: Ray Data LLM tokenizes the
        whole prompt as one text, where it would forge a message. The stage has the model's `processor`.
    """

    class RowByRow(stage):  # type: ignore[misc]
        async def udf(self, batch: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
            try:
                self._check(batch)
                outputs = [output async for output in stage.udf(self, batch)]
            except Exception:
                outputs = []
                for row in batch:
                    try:
                        self._check([row])
                        outputs += [output async for output in stage.udf(self, [row])]
                    except Exception as e:
                        error = storable(f"{type(e).__name__}: {describe_error(e)}")
                        index = self.IDX_IN_BATCH_COLUMN
                        outputs.append({index: row[index], _ERROR: error})
            for output in outputs:
                # Without it, it would be null beside a failed row, and Ray Data LLM takes null for an error.
                yield {_ERROR: "", **output}

        def _check(self, batch: list[dict[str, Any]]) -> None:
            if not refuse_control_tokens:
                return
            if not hasattr(self, "_control"):
                self._control = ControlTokenSet(getattr(self.processor, "tokenizer", self.processor))
            for row in batch:
                messages = row["messages"].tolist() if hasattr(row["messages"], "tolist") else row["messages"]
                self._control.raise_if_forged(messages, json.loads(row[_CELLS]))

    return RowByRow
