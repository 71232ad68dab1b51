"""vLLM fed by the provider: the engine for text, and the default.

Two kinds of processes: workers, which hold the GPUs and run vLLM and nothing else (`vllm_worker`), and
feeders, a Ray Data actor pool on CPUs that does what is to be done around it. A feeder takes a block of
requests, applies the chat template, tokenizes, has a worker answer, and delivers rows in groups as they
finish. When a worker dies, its feeders have the rows that it did not finish answered again, and no other.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, answer_table
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import check_address
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheNamespace
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import (
    COPIED_COLUMNS,
    SENT_COLUMNS,
    DedupClient,
    DedupCoordinator,
)
from airflow_provider_raydatallm.processor.engines.vllm.engine_base import VllmEngineBase
from airflow_provider_raydatallm.processor.engines.vllm.tokenizer import PromptTokenizer, TokenizedRequest
from airflow_provider_raydatallm.processor.engines.vllm.worker import VllmWorker
from airflow_provider_raydatallm.processor.engines.vllm.worker_pool import (
    OpenWorkerPool,
    OwnWorkerPool,
    ready,
)
from airflow_provider_raydatallm.processor.sizing.cluster_probe import is_folder, model_files
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs

if TYPE_CHECKING:
    import ray.data
    from ray import ObjectRef
    from ray.actor import ActorHandle

#: How often an engine may die under one batch before the batch is held to be what kills it.
_DEATHS = 3
#: A worker that is not there yet does not hear that it is to stop.
_STOP_SECONDS = 5.0
#: Started anew it knows nothing, and what it knew is asked again.
_REPEATS = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 10_000}


class VllmEngine(VllmEngineBase):
    worker = VllmWorker
    supports_dedup = True

    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        if job.processor_kwargs:
            raise SliceError(
                "processor_kwargs are for Ray Data LLM's processor: set engine='ray_data_llm'", kind="input"
            )
        if job.answer_cache is not None:
            check_address(job.answer_cache)
        self._workers: list[ActorHandle[Any]] = []
        self._ready: list[ObjectRef[Any]] = []
        self._repeats: ActorHandle[Any] | None = None
        self._asks_again = False

    @property
    def cpu_actors(self) -> tuple[int, int]:
        """Feeders."""
        # One keeps up with several times what a large GPU answers; the second is for long prompts.
        each = 1 if self.on_cpu else 2
        return each * self.workers[0], each * self.workers[1]

    def gpus_held(self, workers: int | None) -> float | None:
        return None if self.on_cpu or workers is None else workers * self.gpus_per_worker

    def choose_sizes(self, facts: SizingInputs) -> None:
        super().choose_sizes(facts)
        if facts.limit_raised:  # for rows that nobody asked yet
            self._asks_again = False

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        import ray

        job = self.job
        workers = self._start()
        if job.deduplicate is not False:
            self._repeats = ray.remote(DedupCoordinator).options(**_REPEATS).remote(self._next_answer_space())
        limit = self.max_model_len
        threads = math.ceil(self.sizes.batches * self.workers[1] / self.cpu_actors[1])
        return requests.map_batches(
            Feeder,
            fn_constructor_args=(
                job,
                workers,
                deliver,
                limit if job.on_too_long == "truncate" else None,
                limit if job.on_too_long == "raise_limit" and self.limit_can_be_raised else None,
                self._repeats,
            ),
            # Of several blocks where they are smaller than it.
            batch_size=self.batch_size if job.blocks else None,
            batch_format="pyarrow",
            **_threaded_pool(self.cpu_actors, threads),
        )

    def _next_answer_space(self) -> CacheNamespace | None:
        """Of a round: its first call is for rows that are asked for the first time."""
        asks_again, self._asks_again = self._asks_again, True
        if self.job.answer_cache is None:
            return None
        try:
            return self._known_space(self.job, self.job.answer_cache, asks_again)
        except Exception as e:  # a node that went; the slice does not depend on it
            print(f"warning: answer_cache: {e}. The slice goes on without it", file=sys.stderr, flush=True)
            return None

    def _known_space(self, job: SliceJob, url: str, asks_again: bool) -> CacheNamespace | None:
        sources = [job.model_source, str(self.engine_kwargs.get("tokenizer") or job.model_source)]
        files = [model_files(source) for source in sources]
        if any(is_folder(source) and not found for source, found in zip(sources, files, strict=True)):
            print(
                f"warning: answer_cache: no node told what is in {' or '.join(dict.fromkeys(sources))}, by "
                "which a model that was replaced is known. The slice goes on without it",
                file=sys.stderr,
                flush=True,
            )
            return None
        return CacheNamespace(
            url,
            answer_cache_key(job, self.engine_kwargs, files),
            job.answer_cache_max_bytes,
            job.answer_cache_max_days,
            # Who tries a row again wants another answer.
            read=not (job.force_rerun or job.retry_quarantined or asks_again),
            # With -1 it is the GPU's memory that may have cut it.
            keep_cut=job.choices is None
            and job.output_schema is None
            and self.engine_kwargs.get("max_model_len") != -1,
        )

    def _start(self) -> OpenWorkerPool:
        """Have the workers started; for feeders to reach them."""
        import ray

        worker = ray.remote(self.worker).options(**self._options())
        self._workers = [worker.remote(self._arguments()) for _ in range(self.workers[1])]
        self._ready = [ready(w) for w in self._workers]
        return partial(OwnWorkerPool, self._workers)

    @property
    def is_ready(self) -> bool:
        return len(self._ready) < len(self._workers)

    def raise_if_broken(self) -> None:
        import ray

        done, self._ready = ray.wait(self._ready, num_returns=len(self._ready), timeout=0)
        for told in ray.get(done):
            self.startup_seconds = self.startup_seconds or told["start"]

    def stop(self) -> None:
        import ray

        repeats = [self._repeats] if self._repeats is not None else []
        ended = [w.stop.remote() for w in self._workers]
        if self.job.answer_cache is not None:
            ended += [actor.close.remote() for actor in repeats]
        ray.wait(ended, num_returns=len(ended), timeout=_STOP_SECONDS)
        for actor in [*self._workers, *repeats]:
            ray.kill(actor)
        self._workers, self._ready, self._repeats = [], [], None

    def _arguments(self) -> dict[str, Any]:
        return {
            "model": os.path.expanduser(self.job.model_source),
            "disable_log_stats": True,
            **self.engine_kwargs,
        }

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_restarts": _DEATHS,
            "max_concurrency": 1000,
            "num_cpus": self.cpus_per_worker,
        }
        if self.env:
            options["runtime_env"] = {"env_vars": self.env}
        if not self.on_cpu:
            options |= {"num_gpus": self.gpus_per_worker, "accelerator_type": self.job.accelerator_type}
        return options


def _threaded_pool(actors: tuple[int, int], threads: int) -> dict[str, Any]:
    """A pool of actors that take several blocks at once, in the words of the installed Ray."""
    from ray.data import ActorPoolStrategy

    strategy: Any = ActorPoolStrategy
    # Ray adds an actor only when twice as many blocks as they take at once wait for those there.
    waiting = 2 if actors[0] == actors[1] else max(2, threads)
    given = {
        "min_size": actors[0],
        "max_size": actors[1],
        "max_tasks_in_flight_per_actor": threads + waiting,
        "enable_true_multi_threading": True,
    }
    if "max_concurrent_calls_per_actor" in inspect.signature(strategy.__init__).parameters:
        return {"compute": strategy(**given, max_concurrent_calls_per_actor=threads)}
    return {"compute": strategy(**given), "max_concurrency": threads}  # until Ray 2.59


class Feeder:
    """What is to be done around vLLM, for some workers. Its threads take a block each."""

    def __init__(
        self,
        job: SliceJob,
        open_workers: OpenWorkerPool,
        deliver: AnswerSink,
        shorten_to: int | None,
        postpone_over: int | None,
        repeats: ActorHandle[Any] | None,
    ) -> None:
        """:param shorten_to: and `postpone_over`: tokens of a prompt with its answer. Longer rows are cut to
            it, or left to an engine with a higher limit.
        :param repeats: `Repeats`, to have rows that ask the same answered once.
        """
        self._encoder = PromptTokenizer(job, shorten_to)
        self._postpone_over = postpone_over
        self._deliver = deliver
        self._workers = open_workers()
        self._once = DedupClient(repeats, always=bool(job.deduplicate)) if repeats is not None else None

    def __call__(self, requests: pa.Table) -> pa.Table:
        """The requests of a block, all answered and delivered when it returns."""
        texts = requests.column("__request").to_pylist()
        ask = partial(self._ask, requests, texts)
        if self._once is None:
            ask(range(len(texts)), lambda rows, answers: None)
        else:
            self._once.run(texts, ask, partial(self._copy, requests))
        return pa.table({"rows": [requests.num_rows]})

    def _ask(
        self,
        requests: pa.Table,
        texts: Sequence[str],
        rows: Sequence[int],
        tell: Callable[[Sequence[int], pa.Table], None],
    ) -> None:
        encoded = dict(zip(rows, self._encoder([texts[row] for row in rows]), strict=True))
        deliver = partial(self._hand_over, requests, tell)
        if refused := {row: e.error for row, e in encoded.items() if e.error is not None}:
            deliver(
                list(refused),
                finished_at=[time.time()] * len(refused),
                error_type=[type(e).__name__ for e in refused.values()],
                error=[f"{type(e).__name__}: {e}" for e in refused.values()],
            )
        deaths = 0
        left = [row for row, e in encoded.items() if row not in refused and not self._is_postponed(e)]
        while left:
            batch = pa.table(
                {
                    "tokens": pa.array([encoded[row].tokens for row in left], pa.list_(pa.int32())),
                    "params": pa.array([encoded[row].params for row in left]),
                }
            )
            finished: set[int] = set()
            with self._workers.least_busy(len(left)) as worker:
                process = worker.process
                for group in worker.generate(batch):
                    here = [left[place] for place in group.column("row").to_pylist()]
                    finished.update(here)
                    answered = {n: group.column(n).combine_chunks() for n in group.schema.names if n != "row"}
                    deliver(here, shortened=[encoded[row].shortened for row in here], **answered)
            left = [row for row in left if row not in finished]
            deaths += bool(left)
            if deaths >= _DEATHS:
                raise SliceError(
                    f"the engine died {deaths} times while it answered the same {len(left)} row(s)",
                    kind="engine",
                    log=process,
                )

    def _is_postponed(self, encoded: TokenizedRequest) -> bool:
        return self._postpone_over is not None and encoded.total_tokens > self._postpone_over

    def _hand_over(
        self,
        requests: pa.Table,
        tell: Callable[[Sequence[int], pa.Table], None],
        rows: Sequence[int],
        **columns: Any,
    ) -> None:
        no, none = [False] * len(rows), [0] * len(rows)
        answers = answer_table(
            requests.take(pa.array(rows, pa.int64())),
            deduplicated=no,
            cached=no,
            saved_tokens=none,
            **columns,
        )
        tell(rows, answers.select(SENT_COLUMNS))
        self._deliver(answers)

    def _copy(self, requests: pa.Table, rows: Sequence[int], answers: pa.Table) -> None:
        none = [0] * len(rows)
        self._deliver(
            answer_table(
                requests.take(pa.array(rows, pa.int64())),
                deduplicated=pc.invert(answers.column("cached").combine_chunks()),
                input_tokens=none,
                output_tokens=none,
                cached_tokens=none,
                finished_at=[time.time()] * len(rows),
                **{name: answers.column(name).combine_chunks() for name in COPIED_COLUMNS},
            )
        )
