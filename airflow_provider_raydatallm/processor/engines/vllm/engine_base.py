"""What the engines that run vLLM have in common: who feeds it makes no difference to its workers."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.engines.vllm.arguments import (
    check_arguments,
    cpu_dtype,
    vllm_is_cpu_build,
)
from airflow_provider_raydatallm.processor.sizing.facts import Resources, Sizes, SizingInputs
from airflow_provider_raydatallm.processor.sizing.model_config import (
    UTILIZATION,
    cache_bytes,
    is_quantized_model,
    read_model_config,
)
from airflow_provider_raydatallm.processor.sizing.sizes import (
    DEFAULT_MAX_NUM_SEQS,
    batches_in_flight,
    default_workers,
    engine_batch_size,
    fitting_max_model_len,
    gpus,
    is_worth_compiling,
)

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.sizing.facts import TokenLengthSample

#: A CPU's memory for the cache is set by a variable, in GiB.
CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "2"}
#: One to read and one to cut blocks.
_CPUS_BESIDE = 2


class VllmEngineBase(Engine):
    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        check_arguments(job.engine_kwargs, job.sampling_params)
        self.on_cpu = vllm_is_cpu_build(job.accelerator_type)
        asked = job.engine_kwargs.get("max_model_len")
        #: Tokens that a prompt and its answer may have together; None leaves it to the model.
        self.max_model_len: int | None = None if asked in ("auto", -1) else asked
        #: Whether rows over it may wait for a higher one.
        self.limit_can_be_raised = True
        self._workers_auto = (1, 1)
        self._eager = self.on_cpu

    @property
    @abstractmethod
    def cpu_actors(self) -> tuple[int, int]:
        """Actors around the workers, a CPU each: the fewest and the most."""

    @property
    def workers(self) -> tuple[int, int]:
        """The fewest and the most."""
        c = self.job.concurrency
        if c == "auto":
            return self._workers_auto
        return (c, c) if isinstance(c, int) else c

    @property
    def engine_kwargs(self) -> Mapping[str, Any]:
        kwargs: dict[str, Any] = {"enforce_eager": True} if self._eager else {}
        if self.on_cpu:
            kwargs["dtype"] = self._cpu_dtype
        kwargs |= self.job.engine_kwargs
        if self.max_model_len is not None:
            kwargs["max_model_len"] = self.max_model_len
        elif kwargs.get("max_model_len") == "auto":
            kwargs["max_model_len"] = -1  # what fits, in vLLM's words, until rows were looked at
        return kwargs

    @cached_property
    def _cpu_dtype(self) -> str:
        # Quantized weights have no kernels for float32.
        is_quantized = is_quantized_model(self.job.model_source, self.job.engine_kwargs)
        return "bfloat16" if is_quantized else cpu_dtype()

    @property
    def needs_past_throughput(self) -> bool:
        return not self.on_cpu and "enforce_eager" not in self.job.engine_kwargs

    def needs_token_lengths(self, *, raised: bool) -> bool:
        return raised or self.job.engine_kwargs.get("max_model_len") == "auto"

    def choose_sizes(self, facts: SizingInputs) -> None:
        super().choose_sizes(facts)
        if facts.cluster is not None and not self.on_cpu:  # one engine uses all cores
            there = facts.cluster.gpus_of(self.job.accelerator_type)
            self._workers_auto = default_workers(int(there), self.gpus_per_worker, self.rows)
        if facts.lengths is not None:
            self._fit_limit(facts, facts.lengths)
        if self.on_cpu:
            self._eager = True  # the CPU build compiles for longer than it gains
        else:
            rate = facts.past_throughput.rows_per_s * self.workers[1] if facts.past_throughput else None
            self._eager = not is_worth_compiling(self.rows, rate)

    @property
    def parallel(self) -> tuple[int, int]:
        """GPUs (CPUs of a CPU build) that share a worker's model: tensors, and layers."""
        kwargs = self.job.engine_kwargs
        return int(kwargs.get("tensor_parallel_size") or 1), int(kwargs.get("pipeline_parallel_size") or 1)

    @property
    def gpus_per_worker(self) -> int:
        """GPUs (CPUs of a CPU build) of a worker."""
        return self.parallel[0] * self.parallel[1]

    def _fit_limit(self, facts: SizingInputs, lengths: TokenLengthSample) -> None:
        most = lengths.positions
        memory = facts.cluster.gpu_bytes if facts.cluster is not None else None
        shape = read_model_config(self.job.model_source, self.job.engine_kwargs)
        if shape is not None and memory is not None:
            utilization = float(self.job.engine_kwargs.get("gpu_memory_utilization") or UTILIZATION)
            cache = cache_bytes(shape, memory, self.gpus_per_worker, utilization)
            if cache is not None and cache > 0:
                most = min(most or sys.maxsize, int(cache / shape.kv_bytes_per_token))
        before, percent = self.max_model_len, 100 if facts.limit_raised else self.job.max_model_len_percentile
        if lengths.tokens:
            fitting = fitting_max_model_len(lengths.tokens, percent, most)
            # A limit that was asked for is raised, never lowered.
            self.max_model_len = max(fitting, before or 0) if facts.limit_raised else fitting
        # What is over a limit that can be raised no more is the engine's to refuse.
        self.limit_can_be_raised = self.max_model_len != before if facts.limit_raised else True
        if most is not None and self.max_model_len is not None and self.max_model_len >= most:
            self.limit_can_be_raised = False

    @property
    def batch_size(self) -> int:
        return self.job.batch_size or self.default_batch_size()

    def default_batch_size(self) -> int:
        return engine_batch_size(self.rows, self.workers[1])

    @property
    def sizes(self) -> Sizes:
        asked = self.job.engine_kwargs.get("max_num_seqs")
        most = int(asked or DEFAULT_MAX_NUM_SEQS)
        return Sizes(
            workers=self.workers,
            gpus=(0, 0) if self.on_cpu else gpus(self.workers, *self.parallel),
            batch_size=self.batch_size,
            batches=self.job.max_concurrent_batches or batches_in_flight(self.batch_size, most),
            max_num_seqs=most,
            block_rows=self.block_rows,
        )

    @property
    def resources(self) -> Resources:
        low, each = self.workers[0], self.gpus_per_worker
        helpers = self.cpu_actors[0]
        return Resources(
            cpus=low * self.cpus_per_worker + helpers + _CPUS_BESIDE,
            gpus=0 if self.on_cpu else low * each,
            breakdown=f"{low} engine worker(s) of {each} {'CPU' if self.on_cpu else 'GPU'}(s), "
            f"{helpers} actor(s) around them, {_CPUS_BESIDE} to read and write",
        )

    @property
    def env(self) -> dict[str, str]:
        """Variables for its workers' processes, but for those that somebody set."""
        given = CPU_ENV if self.on_cpu else {}
        return {name: value for name, value in given.items() if name not in os.environ}

    @property
    def cpus_per_worker(self) -> int:
        """Logical CPUs of a worker: one to drive its GPUs, or those that it computes on."""
        return self.gpus_per_worker if self.on_cpu else 1
