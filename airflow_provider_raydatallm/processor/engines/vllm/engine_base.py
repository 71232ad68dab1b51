"""What all engines that run vLLM share: arguments, sizes and resources of their workers."""

from __future__ import annotations

import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from airflow_provider_raydatallm.contract.spec.engines.base import ClusterEngine
from airflow_provider_raydatallm.contract.spec.parallel import Parallel, read_parallel
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.engines.vllm.arguments import (
    check_arguments,
    check_speculation,
    cpu_dtype,
    read_max_num_seqs,
    vllm_is_cpu_build,
)
from airflow_provider_raydatallm.processor.engines.vllm.chat_template import check_chat_template
from airflow_provider_raydatallm.processor.engines.vllm.image_models import check_image_model
from airflow_provider_raydatallm.processor.engines.vllm.pooling_models import check_pooling_model
from airflow_provider_raydatallm.processor.engines.vllm.reasoning import (
    check_reasoning_parser,
    reasoning_parser,
)
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from airflow_provider_raydatallm.processor.engines.vllm.speech_models import check_speech_model
from airflow_provider_raydatallm.processor.request.answers.grammar import check_compiles
from airflow_provider_raydatallm.processor.sizing import model_config
from airflow_provider_raydatallm.processor.sizing import sizes as sizing
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, Resources, Sizes, SizingInputs
from airflow_provider_raydatallm.processor.sizing.parallel import (
    Placement,
    check_worker_starts_it_all,
    placement,
)

logger = logging.getLogger(__name__)

#: GiB of memory for the cache on a CPU.
CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "2"}
#: vLLM's arguments that say which CUDA graphs are captured, or exclude saying it.
_SETS_GRAPHS = frozenset({
    "cudagraph_capture_sizes", "max_cudagraph_capture_size", "compilation_config",
    "optimization_level", "performance_mode", "speculative_config",
})  # fmt: skip
#: One to read and one to split blocks.
_PIPELINE_CPUS = 2


class VllmEngineBase(Engine):
    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        check_arguments(job.engine.arguments, job.task.sampling)
        check_compiles(job)
        read_max_num_seqs(job.engine.arguments)
        self.on_cpu = vllm_is_cpu_build(job.engine.gpu)
        check_speculation(job.engine.arguments)
        check_worker_starts_it_all(job.engine.arguments, on_cpu=self.on_cpu)
        check_reasoning_parser(job)
        check_chat_template(job)
        check_pooling_model(job)
        check_image_model(job)
        check_speech_model(job)
        max_model_len = job.engine.arguments.get("max_model_len")
        #: Tokens of a prompt plus its answer; None: the model's own limit.
        self.max_model_len: int | None = None if max_model_len in ("auto", -1) else max_model_len
        #: Whether rows over `max_model_len` may wait for a higher one.
        self.limit_can_be_raised = True
        self._workers_auto = (1, 1)
        self._most_workers = sys.maxsize
        self._eager = self.on_cpu
        self._graph_sizes: list[int] = []

    @property
    def _asked(self) -> ClusterEngine:
        return self.job.engine_as(ClusterEngine)

    @property
    @abstractmethod
    def cpu_actors(self) -> tuple[int, int]:
        """Fewest and most actors around the workers, a CPU each."""

    @property
    def workers(self) -> tuple[int, int]:
        """The fewest and the most."""
        concurrency = self._asked.workers
        if concurrency == "auto":
            fewest, most = self._workers_auto
        else:
            fewest, most = (concurrency,) * 2 if isinstance(concurrency, int) else concurrency
        return fewest, max(fewest, min(most, self._most_workers))

    @property
    def engine_kwargs(self) -> Mapping[str, Any]:
        kwargs: dict[str, Any] = {"enforce_eager": True} if self._eager else {}
        if self.on_cpu:
            kwargs["dtype"] = self._cpu_dtype
        if self.job.task.pools:
            kwargs["runner"] = "pooling"
        if self.job.task.media is not None:
            # The cache has a half in each of vLLM's processes. A row that is refused after it entered one of
            # them (its prompt is too long) would fail the next row with the same image.
            kwargs["mm_processor_cache_gb"] = 0
        if (parser := reasoning_parser(self.job)) is not None:  # a grammar, or a budget, holds for a part
            kwargs["reasoning_parser"] = parser
        kwargs |= self.job.engine.arguments
        if self._graph_sizes and not kwargs.get("enforce_eager") and not _SETS_GRAPHS & kwargs.keys():
            kwargs["cudagraph_capture_sizes"] = self._graph_sizes
        if self.max_model_len is not None:
            kwargs["max_model_len"] = self.max_model_len
        elif kwargs.get("max_model_len") == "auto":
            kwargs["max_model_len"] = -1  # for vLLM: what fits; until rows were sampled
        return kwargs

    @cached_property
    def _cpu_dtype(self) -> str:
        # Quantized weights lack kernels for float32.
        is_quantized = model_config.is_quantized_model(self.job.model_source, self.job.engine.arguments)
        return "bfloat16" if is_quantized else cpu_dtype()

    @property
    def needs_past_throughput(self) -> bool:
        return not self.on_cpu and "enforce_eager" not in self.job.engine.arguments

    def needs_token_lengths(self, *, raised: bool) -> bool:
        return raised or self.job.engine.arguments.get("max_model_len") == "auto"

    @property
    def open_tokenizer(self) -> Callable[[], PromptTokenizer]:
        return partial(PromptTokenizer, self.job)

    def choose_sizes(self, facts: SizingInputs) -> None:
        super().choose_sizes(facts)
        if facts.cluster is not None and not self.on_cpu:  # one engine uses all cores
            cluster_gpus = int(facts.cluster.gpus_of(self.job.engine.gpu))
            self._workers_auto = sizing.default_workers(
                cluster_gpus, self.gpus_per_worker, self.rows, self.parallel.data
            )
            self._graph_sizes = sizing.graph_sizes(
                read_max_num_seqs(self.job.engine.arguments), facts.cluster.gpu_bytes
            )
        if facts.cluster is not None:
            self._leave_cpus(facts.cluster)
        self._choose_max_model_len(facts)
        if self.on_cpu:
            self._eager = True  # compiling takes the CPU build longer than it saves
        else:
            rate = facts.past_throughput.rows_per_s * self.workers[1] if facts.past_throughput else None
            self._eager = not sizing.is_worth_compiling(self.rows, rate)

    def _leave_cpus(self, cluster: ClusterFacts) -> None:
        """Lowers the most workers, so that they leave CPUs to what brings them rows: without it all wait."""
        if cluster.max_resources is None:
            return
        cpus = max(resources.get("CPU", 0) for resources in (cluster.resources, cluster.max_resources))
        kept = self.cpu_actors[0] + _PIPELINE_CPUS
        fitting = int((cpus - kept) // self.cpus_per_worker)
        fewest, most = self.workers
        if fewest <= fitting < most:
            self._most_workers = fitting
            logger.warning(
                "at most %d of %d engine workers run: of %g CPUs what brings them rows needs %g",
                fitting, most, cpus, kept,
            )  # fmt: skip

    @cached_property
    def parallel(self) -> Parallel:
        return read_parallel(self.job.engine.arguments)

    @property
    def gpus_per_worker(self) -> int:
        """CPUs on a CPU build."""
        return self.parallel.gpus

    @property
    def placement(self) -> Placement:
        return placement(self.parallel, on_cpu=self.on_cpu, accelerator_type=self.job.engine.gpu)

    def _choose_max_model_len(self, facts: SizingInputs) -> None:
        lengths = facts.lengths
        if lengths is None:
            return
        upper_bound = lengths.positions
        gpu_bytes = facts.cluster.gpu_bytes if facts.cluster is not None else None
        config = model_config.read_model_config(self.job.model_source, self.job.engine.arguments)
        if config is not None and gpu_bytes is not None:
            utilization = float(
                self.job.engine.arguments.get("gpu_memory_utilization") or model_config.UTILIZATION
            )
            cache = model_config.cache_bytes(config, gpu_bytes, self.parallel, utilization)
            if cache is not None and cache > 0:
                upper_bound = min(upper_bound or sys.maxsize, int(cache / config.kv_bytes_per_token))
        before, percent = (
            self.max_model_len,
            100 if facts.limit_raised else self._asked.max_model_len_percentile,
        )
        if lengths.tokens:
            fitting = sizing.fitting_max_model_len(lengths.tokens, percent, upper_bound)
            # The job's own limit may be raised, but never lowered.
            self.max_model_len = max(fitting, before or 0) if facts.limit_raised else fitting
        # The engine refuses rows over a limit that cannot be raised further.
        self.limit_can_be_raised = self.max_model_len != before if facts.limit_raised else True
        if upper_bound is not None and self.max_model_len is not None and self.max_model_len >= upper_bound:
            self.limit_can_be_raised = False

    @property
    def batch_size(self) -> int:
        return self._asked.batch_size or self.default_batch_size()

    def default_batch_size(self) -> int:
        return sizing.engine_batch_size(self.rows, self.workers[1] * self.parallel.data)

    @property
    def max_num_seqs(self) -> int:
        """Rows that a worker runs at once in all its ranks, as far as known before it starts."""
        per_rank = read_max_num_seqs(self.job.engine.arguments) or sizing.DEFAULT_MAX_NUM_SEQS
        return per_rank * self.parallel.data

    @property
    def batches(self) -> int | None:
        """In flight in each worker; None where rows are admitted one by one."""
        return self._asked.max_concurrent_batches or sizing.batches_in_flight(
            self.batch_size, self.max_num_seqs
        )

    @property
    def sizes(self) -> Sizes:
        batches = self.batches
        if batches is not None:
            in_flight = batches * self.batch_size
        else:
            in_flight = sizing.rows_in_flight(self.max_num_seqs, self._asked.max_concurrent_batches)
        return Sizes(
            workers=self.workers,
            gpus=(0, 0) if self.on_cpu else sizing.gpus(self.workers, self.gpus_per_worker),
            batch_size=self.batch_size if batches is not None else None,
            rows_in_flight=in_flight,
            max_num_seqs=self.max_num_seqs,
            block_rows=self.block_rows,
        )

    @property
    def resources(self) -> Resources:
        workers, gpus_each, actors = self.workers[0], self.gpus_per_worker, self.cpu_actors[0]
        return Resources(
            cpus=workers * self.cpus_per_worker + actors + _PIPELINE_CPUS,
            gpus=0 if self.on_cpu else workers * gpus_each,
            breakdown=f"{workers} engine worker(s) of {gpus_each} {'CPU' if self.on_cpu else 'GPU'}(s), "
            f"{actors} actor(s) around them, {_PIPELINE_CPUS} to read and write",
            gpus_on_one_node=self.parallel.gpus_on_one_node,
        )

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for its workers' processes, except those that are set already."""
        defaults = CPU_ENV if self.on_cpu else {}
        if self.on_cpu and self.engine_kwargs.get("enforce_eager"):
            # vLLM compiles the part that reads probabilities all the same, which takes longer than a slice.
            defaults = {**defaults, "TORCH_COMPILE_DISABLE": "1"}
        return {name: value for name, value in defaults.items() if name not in os.environ}

    @property
    def cpus_per_worker(self) -> int:
        """Logical CPUs: one to drive the worker's GPUs, or those that it computes on."""
        cpus: int = self.placement.actor["num_cpus"]
        return cpus
