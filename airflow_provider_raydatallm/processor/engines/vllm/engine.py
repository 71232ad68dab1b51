"""vLLM fed by the provider: the default engine, for text.

It has two kinds of processes: workers, which hold the GPUs and run vLLM and nothing else (`worker`), and
feeders, which do everything around it on CPUs (`feeder`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.adapters.adapter import Adapter
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, OpenFeeder
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheNamespace, warn
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.slice_dedup import SliceDedup
from airflow_provider_raydatallm.processor.engines.feeding.active_feeders import ActiveFeeders
from airflow_provider_raydatallm.processor.engines.feeding.feeder import (
    SILENT_SECONDS,
    Feeder,
    FeederSetup,
)
from airflow_provider_raydatallm.processor.engines.feeding.isolation import SuspectFeeder
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget
from airflow_provider_raydatallm.processor.engines.feeding.suspect_keys import SuspectKeys
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import OpenWorkerPool, OwnWorkerPool
from airflow_provider_raydatallm.processor.engines.vllm.engine_base import VllmEngineBase
from airflow_provider_raydatallm.processor.engines.vllm.lora import lora_arguments
from airflow_provider_raydatallm.processor.engines.vllm.own_workers import RESTARTS, OwnWorkers
from airflow_provider_raydatallm.processor.engines.vllm.repetition import repeated_share
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker
from airflow_provider_raydatallm.processor.sizing import sizes as sizing
from airflow_provider_raydatallm.processor.sizing.cluster_probe import is_folder, model_files
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


class VllmEngine(VllmEngineBase):
    worker = VllmWorker
    supports_dedup = True
    supports_media = True
    #: Without a sign of life, after which a worker's rows are asked elsewhere.
    silent_after_s = SILENT_SECONDS

    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        self._dedup = SliceDedup(job)
        self._workers: OwnWorkers | None = None
        self._groups: list[PlacementGroup] = []
        self._active_feeders: ActiveFeeders | None = None
        self._suspect_keys: SuspectKeys | None = None
        self._isolates = False
        self._adapters: Sequence[Adapter] = ()
        #: Of its feeders, while it runs; rows may be asked again.
        self._feeding: Callable[..., FeederSetup] | None = None

    def use_adapters(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = adapters
        self._lora_arguments()  # which it may refuse

    def _lora_arguments(self) -> dict[str, Any]:
        return lora_arguments(self._adapters, self.job.engine.arguments, on_cpu=self.on_cpu)

    def for_suspects(self, rows: int) -> VllmEngine:
        """An engine of the slice's own for rows that may kill it (`isolation`)."""
        engine = self._own_class(self.job, rows)
        engine.use_adapters(self._adapters)
        engine.max_model_len, engine.limit_can_be_raised = self.max_model_len, False
        # It starts several times, for few rows.
        engine.sizing_inputs = self.sizing_inputs or SizingInputs(None)
        engine._isolates = engine._eager = True
        return engine

    @property
    def _own_class(self) -> type[VllmEngine]:
        return type(self)

    @property
    def workers(self) -> tuple[int, int]:
        return (1, 1) if self._isolates else super().workers

    @property
    def cpu_actors(self) -> tuple[int, int]:
        """Feeders."""
        # One keeps up with several times what a large GPU answers; the second is for long prompts.
        per_worker = 1 if self.on_cpu or self._isolates else 2
        return per_worker * self.workers[0], per_worker * self.workers[1]

    @property
    def workers_behind_one_address(self) -> int | None:
        """Workers that feeders cannot tell apart; None where they can."""
        return None

    def default_batch_size(self) -> int:
        rows = sizing.block_rows(self.rows, self.cpu_actors[1])
        media = self.job.task.media
        return rows if media is None else min(rows, sizing.MEDIA_BLOCK[media.argument])

    @property
    def batches(self) -> int | None:
        """None: rows are admitted one by one, unless the job fixes batches."""
        return super().batches if self._asked.batch_size is not None and not self._isolates else None

    @property
    def row_budget(self) -> RowBudget:
        """Of each worker."""
        return RowBudget(self.sizes.rows_in_flight, sizing.TOKENS_IN_FLIGHT, self.batches)

    def gpus_held(self, workers: int | None) -> float | None:
        return None if self.on_cpu or workers is None else workers * self.gpus_per_worker

    def choose_sizes(self, facts: SizingInputs) -> None:
        super().choose_sizes(facts)
        if facts.limit_raised:  # the next rows were postponed, and not yet answered
            self._dedup.is_retry = False

    def take_no_earlier_answers(self) -> None:
        self._dedup.takes_no_earlier_answers = True

    def doubt_answers(self, since: float) -> None:
        self._dedup.doubt_answers(since)

    @property
    def feeders(self) -> tuple[int, int]:
        return self.cpu_actors

    @property
    def block_rows(self) -> int:
        return self.batch_size if self.batches is not None else super().block_rows

    @property
    def needs_ray_data(self) -> bool:
        return self._isolates or super().needs_ray_data

    def start_for_feeders(self, *, alone: bool = False) -> OpenFeeder:
        if self._feeding is None:
            self._feeding = self._start_feeding(alone)
        else:
            self._dedup.forget_claims()
        return partial(_open_feeder, SuspectFeeder if self._isolates else Feeder, self._feeding)

    def _start_feeding(self, alone: bool) -> Callable[..., FeederSetup]:
        """Starts the engine. Returns what makes its feeders' setup; `deliver` is left."""
        job = self.job
        open_workers = self._start()
        run = uuid.uuid4().hex[:12]
        self._active_feeders, self._suspect_keys = ActiveFeeders(run), SuspectKeys(run)
        limit = self.max_model_len
        return partial(
            FeederSetup,
            job,
            partial(PromptTokenizer, job, limit if job.quality.on_too_long == "truncate" else None),
            open_workers,
            budget=self.row_budget,
            window_rows=sizing.window_rows(self.rows, self.cpu_actors[1]),
            active_feeders=self._active_feeders,
            suspect_keys=self._suspect_keys,
            postpone_over=limit
            if job.quality.on_too_long == "raise_limit" and self.limit_can_be_raised
            else None,
            dedup=self._start_dedup(alone),
            shared_workers=self.workers_behind_one_address,
            groups_adapters=len(self._adapters) > self._lora_arguments().get("max_loras", 0),
            silent_after_s=self.silent_after_s,
        )

    def _start_dedup(self, alone: bool) -> Callable[[], DedupClient] | None:
        """Returns what finds identical requests, in a feeder's process."""
        if self._isolates:
            return None
        shards = sizing.dedup_shards(self.workers[1])
        return self._dedup.start(self._next_cache_namespace(), shards=shards, in_one_process=alone)

    def _next_cache_namespace(self) -> CacheNamespace | None:
        # With max_model_len -1 the GPU's memory may have cut an answer.
        keep_truncated = self.engine_kwargs.get("max_model_len") != -1
        return self._dedup.next_namespace(
            self._cache_key, keep_truncated=keep_truncated, numbers=self.job.task.numbers_per_answer
        )

    def _cache_key(self) -> str | None:
        job = self.job
        sources = [job.model_source, str(self.engine_kwargs.get("tokenizer") or job.model_source)]
        files = [model_files(source) for source in sources]
        if any(is_folder(source) and not listing for source, listing in zip(sources, files, strict=True)):
            folders = " or ".join(dict.fromkeys(sources))
            warn(f"disabled: could not read the model's files in {folders} on any node")
            return None
        return answer_cache_key(job, self.engine_kwargs, files)

    def _start(self) -> OpenWorkerPool:
        """Starts the workers. Returns how feeders reach them."""
        import ray

        actor: Any = ray.remote(**self._worker_options())(self.worker)
        self._workers = OwnWorkers(
            actor,
            [self._worker_arguments(), *([self._adapters] if self._adapters else [])],
            self._group_options,
            self.workers,
            None if self._isolates else RESTARTS,
        )
        return partial(OwnWorkerPool, self._workers.actors, self.workers[1])

    @property
    def is_ready(self) -> bool:
        return self._workers is not None and self._workers.is_ready

    def raise_if_broken(self) -> None:
        if self._workers is not None:
            self._workers.check()
            self.startup_seconds = self._workers.startup_seconds

    def fit_workers(self, rows: int, wanted: int | None) -> Set[str]:
        if self._workers is None:
            return set()
        # "auto" is as many as the cluster has: only bounds of the job's own ask for fewer.
        wanted = None if self._asked.workers == "auto" else wanted
        return self._workers.fit(rows, self.row_budget.rows, wanted)

    def stop(self) -> None:
        from ray.util import remove_placement_group

        if self._workers is not None:
            self._workers.stop()
            self.repeated_share = repeated_share(self._workers.repetition)
        self._dedup.stop()
        for group in self._groups:
            remove_placement_group(group)
        for shared in (self._active_feeders, self._suspect_keys):
            if shared is not None:
                shared.forget()
        self._workers, self._groups, self._feeding = None, [], None
        self._active_feeders = self._suspect_keys = None

    def _worker_arguments(self) -> dict[str, Any]:
        return {
            "model": os.path.expanduser(self.job.model_source),
            "disable_log_stats": True,
            **self.engine_kwargs,
            **self._lora_arguments(),
        }

    def _worker_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_concurrency": 1000,
            **self.placement.actor,
        }
        if self.env:
            options["runtime_env"] = {"env_vars": self.env}
        return options

    def _group_options(self) -> dict[str, Any]:
        """Puts a worker into a placement group of its own, if it has one: vLLM's Ray executor uses the group
        of the actor that it runs in."""
        if not self.placement.bundles:
            return {}
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group(self.placement.bundles, strategy="PACK")
        self._groups.append(group)
        strategy = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        return {"scheduling_strategy": strategy}


def _open_feeder(feeder: type[Feeder], setup: Callable[..., FeederSetup], deliver: AnswerSink) -> Feeder:
    return feeder(setup(deliver=deliver))
