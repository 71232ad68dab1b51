"""What answers a slice's identical requests once: started in the driver, used in its feeders' processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.errors import log_text
from airflow_provider_raydatallm.contract.spec.engines.cache import CachingEngine
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.dedup import doubted_answers
from airflow_provider_raydatallm.processor.engines.dedup.answer_cache import check_address
from airflow_provider_raydatallm.processor.engines.dedup.cache_files import CacheNamespace, warn
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import DedupCoordinator
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import Shard
from airflow_provider_raydatallm.processor.storage.store import Store

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: A busy coordinator stores its answers in time, or not at all.
_STOP_SECONDS = 5.0
#: A restarted coordinator has lost its answers; they are inferred again.
_COORDINATOR_OPTIONS = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 10_000}


class SliceDedup:
    """:raises SliceError: from the constructor, for a cache whose address cannot be used."""

    def __init__(self, job: SliceJob) -> None:
        self._job = job
        engine = job.engine
        #: The engine, where slices share its answers.
        self._cached = engine if isinstance(engine, CachingEngine) and engine.cache is not None else None
        if self._cached is not None and self._cached.cache is not None:
            check_address(self._cached.cache)
        self._coordinators: list[ActorHandle[Any]] = []
        #: Whether the next round retries rows.
        self.is_retry = False
        #: Whether every round does.
        self.takes_no_earlier_answers = False

    def next_namespace(
        self, cache_key: Callable[[], str | None], *, keep_truncated: bool = True, numbers: int | None = None
    ) -> CacheNamespace | None:
        """The answer cache of the next round. Every round after the first retries rows.

        :param cache_key: its key; None where there can be no cache.
        :param keep_truncated: `CacheNamespace`, for answers without a shape.
        :param numbers: `CacheNamespace`.
        """
        job = self._job
        is_retry, self.is_retry = self.is_retry or self.takes_no_earlier_answers, True
        if self._cached is None or self._cached.cache is None:
            return None
        try:
            key = cache_key()
        except Exception as e:  # a node is gone, but the slice does not depend on it
            warn(f"{e}. The slice continues without it")
            return None
        if key is None:
            return None
        return CacheNamespace(
            self._cached.cache,
            key,
            self._cached.cache_max_bytes,
            self._cached.cache_max_days,
            job.model_source,
            # A retry is for another answer.
            read_existing=not (job.rerun.force or job.rerun.retry_quarantined or is_retry),
            keep_truncated=keep_truncated and not job.task.shapes,
            numbers=numbers,
        )

    def doubt_answers(self, since: float) -> None:
        """See `Engine.doubt_answers`. Without the cache the slice is judged all the same."""
        if self._cached is None or self._cached.cache is None:
            return
        try:
            doubted_answers.note(Store(self._cached.cache), self._job.model_source, since, time.time())
        except Exception as e:
            warn(f"{log_text(e)}. Other slices may get answers that golden rows speak against")

    def start(
        self, namespace: CacheNamespace | None, *, shards: int = 1, in_one_process: bool = False
    ) -> Callable[[], DedupClient] | None:
        """Starts a round. Returns what finds identical requests, in a feeder's process; None where the job
        wants each answered.

        :param in_one_process: whether there is one feeder only.
        """
        import ray

        if self._job.engine.deduplicate is False:
            return None
        always = bool(self._job.engine.deduplicate)
        if in_one_process and namespace is None:
            return partial(DedupClient.alone, always=always)
        actor: Any = ray.remote(DedupCoordinator)
        self._coordinators = [
            actor.options(**_COORDINATOR_OPTIONS).remote(namespace, Shard(i, shards)) for i in range(shards)
        ]
        return partial(DedupClient.of_actors, self._coordinators, always=always)

    def forget_claims(self) -> None:
        """Others may infer at once what feeders claimed that are gone."""
        for actor in self._coordinators:
            actor.forget_claims.remote()

    def stop(self) -> None:
        import ray

        closes = self._coordinators if self._cached is not None else []
        stored = [actor.close.remote() for actor in closes]
        if stored:
            ray.wait(stored, num_returns=len(stored), timeout=_STOP_SECONDS)
        for actor in self._coordinators:
            ray.kill(actor)
        self._coordinators = []
