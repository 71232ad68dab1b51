"""vLLM behind Ray Serve: slices that need equal engines share one, which outlives their jobs."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.log.secret_shapes import is_secret_name
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engines.vllm import Vllm
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import OpenWorkerPool, WorkerDiedError
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.identity import Identity, package_of_this_code
from airflow_provider_raydatallm.processor.engines.shared.replica import MODEL_TOKEN, SharedVllmReplica
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import Scaling, SharedEngine
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.ray_runtime.actor_deaths import is_death
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import Poll
from airflow_provider_raydatallm.processor.ray_runtime.bytecode import BYTECODE_VARIABLES
from airflow_provider_raydatallm.processor.ray_runtime.marks import Mark
from airflow_provider_raydatallm.processor.sizing.cluster_probe import model_files
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, Resources, SizingInputs
from airflow_provider_raydatallm.processor.sizing.model_config import (
    answers_depend_on_limit,
    cpu_engine_bytes,
)
from airflow_provider_raydatallm.processor.sizing.sizes import BATCH, default_workers

#: Parts of a job's environment that are its own: code that the engine does not run, and variables that differ
#: between jobs.
_NOT_SHARED = ("py_modules",)
_NOT_SHARED_VARIABLES = ("AWS_", "RAY_", *BYTECODE_VARIABLES)

#: Seconds that a check waits for news of the engine; without any, it goes on.
_NEWS_SECONDS = 1.0
#: The same where the news decides whether a run ends: longer than a restart of Serve's controller.
_LAST_NEWS_SECONDS = 40.0
#: Polls, a second apart, after which an engine that cannot be seen counts as stopped.
_ABSENT_POLLS = 3
#: Polls after which a worker without resources counts as blocked: where there is room, it has started.
_WORKERLESS_POLLS = 10
#: Failed starts of an engine that ran before. At the first, its memory may not be free yet.
_MAX_FAILED_STARTS = 2
_READY_SECONDS = 10


@dataclass
class _Observations:
    """State of the shared engine as seen in this round; other jobs may stop it between rounds.

    poll: whether this slice had deployed the engine when the poll began, and the engine: the poll could see
    a failed one that is then restarted.
    """

    poll: Poll[tuple[bool, SharedEngine | None]]
    deployed: bool = False
    was_running: bool = False
    was_polled: bool = False
    absent_polls: int = 0
    workerless_polls: int = 0
    failed_starts: set[str] = field(default_factory=set)


class SharedVllmEngine(VllmEngine):
    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        self._user: tuple[Mark, str] | None = None
        self._covering: Identity | None = None
        self._worker_memory = 0
        self._seen = _Observations(Poll(self._look))

    @property
    def needs_past_throughput(self) -> bool:
        return False

    def choose_sizes(self, facts: SizingInputs) -> None:
        super().choose_sizes(facts)
        if facts.cluster is not None and not self.on_cpu:
            # As many as the cluster has: Serve starts those that there is work for.
            cluster_gpus = int(facts.cluster.gpus_of(self.job.engine.gpu))
            self._workers_auto = default_workers(cluster_gpus, self.gpus_per_worker, sys.maxsize)
        if facts.cluster is not None and self.on_cpu:
            self._worker_memory = self._choose_memory(facts.cluster)
        self._eager = self.on_cpu  # it lives long enough for compiling to pay off

    def _choose_memory(self, cluster: ClusterFacts) -> int:
        """Bytes that a worker reserves, so that no more engines stay than its node's memory holds: Ray counts
        GPUs for those on GPUs. One that may be alone always has room."""
        source, kwargs = self.job.model_source, self.engine_kwargs
        file_bytes = sum(size for files in model_files(source)[:1] for _, size, _ in files)
        cache_gib = float({**self.env, **os.environ}["VLLM_CPU_KVCACHE_SPACE"] or 0)
        cache_bytes = float(kwargs.get("kv_cache_memory_bytes") or cache_gib * (1 << 30))
        of_all = cluster.resources.get("memory", 0) / self.workers[0]
        holds = cpu_engine_bytes(source, kwargs, file_bytes, cache_bytes)
        return int(min(holds, cluster.node_memory, of_all))

    @property
    def resources(self) -> Resources:
        found = super().resources
        if not self._worker_memory:
            return found
        memory = (self._worker_memory,) * self.workers[0]
        breakdown = f"{found.breakdown}, {self._worker_memory / 1e9:.1f} GB of memory for each engine worker"
        return replace(found, memory=memory, breakdown=breakdown)

    @cached_property
    def _own_identity(self) -> Identity:
        """Equal for slices that can share an engine."""
        others = {
            "files": model_files(self.job.model_source),
            "accelerator_type": self.job.engine.gpu,
            "runtime_env": self._runtime_env(),
        }
        return Identity.of(self.job.model_source, self._worker_arguments(), others)

    @cached_property
    def _takes_larger_limits(self) -> bool:
        """Whether an engine with a larger `max_model_len` answers its rows as its own would."""
        if self.job.task.media is not None:  # which becomes tokens only in the engine
            return False
        return not answers_depend_on_limit(self.job.model_source, self.job.engine.arguments)

    @property
    def _identity(self) -> Identity:
        """Of the engine that this slice uses, or is to start."""
        return self._covering or self._own_identity

    @property
    def name(self) -> str:
        return self._identity.name

    @property
    def shared_actor_prefix(self) -> str:  # type: ignore[override]
        return serve_apps.actor_prefix(self.name)

    @property
    def resources_needed_now(self) -> Resources:
        """Without its workers, if the engine is running: then this job does not wait for another's engine to
        stop."""
        running = self._find_running()
        self._covering = running.identity if running is not None else None
        if running is None:
            return self.resources
        cpus = self.resources.cpus - self.workers[0] * self.cpus_per_worker
        return Resources(cpus, 0, "beside a running shared engine")

    def _find_running(self) -> SharedEngine | None:
        """The engine that this slice can use as it is: its own, else the smallest one that covers it."""
        own = self._own_identity
        engines = serve_apps.SERVE.engines()
        for engine in sorted(engines, key=lambda e: (e.name != own.name, e.limit)):
            if (engine.name == own.name or self._is_covered_by(engine)) and self._is_usable(engine):
                return engine
        return None

    def _is_covered_by(self, engine: SharedEngine) -> bool:
        identity = engine.identity
        return identity is not None and identity.covers(self._own_identity) and self._takes_larger_limits

    def _is_usable(self, engine: SharedEngine) -> bool:
        if not engine.is_alive or not serve_apps.SERVE.has_workers(engine):
            return False
        is_right = engine.scaling == self._scaling.name and not engine.fails_to_start
        return is_right or bool(engine.users)  # without users it would be restarted

    @property
    def engine_to_keep(self) -> str | None:
        running = self._find_running()
        return running.name if running is not None else None

    def on_admitted(self) -> None:
        # While no other job is admitted, no job stops it to make room.
        token = _job_environment().get("env_vars", {}).get(MODEL_TOKEN, "")
        self._user = serve_apps.SERVE.register_user(self.name, self.job.slice_path, token)

    def blocking_engines(self) -> list[str]:
        limit = self.job.engine_as(Vllm).max_shared
        if limit is None:
            return []
        # An engine in use counts also while its worker is replaced.
        engines = [e.name for e in serve_apps.SERVE.engines() if e.workers or e.users]
        if self.name in engines or len(engines) < limit:
            return []
        return [f"shared engine {name}" for name in engines]

    @property
    def _own_class(self) -> type[VllmEngine]:
        return VllmEngine

    @property
    def workers_behind_one_address(self) -> int:
        return self.workers[1]

    @property
    def _scaling(self) -> Scaling:
        # Serve counts calls. Sized for any slice, not only for this one: a larger one may come later.
        calls = self.batches or math.ceil(self.sizes.rows_in_flight / SharedWorkerPool.largest_call)
        return Scaling(self.workers, calls, self.job.engine_as(Vllm).idle_timeout)

    def _start(self) -> OpenWorkerPool:
        assert self._user is not None
        serve_apps.SERVE.ensure_running(
            self._identity,
            self._scaling,
            SharedVllmReplica,
            (self._arguments(),),
            bundles=self.placement.bundles,
            **{name: value for name, value in self.placement.actor.items() if value is not None},
            **({"memory": self._worker_memory} if self._worker_memory else {}),
            runtime_env=self._runtime_env(),
        )
        self._seen.deployed = True
        own = self._own_identity.limit
        limit = own if self._identity.limit != own else None
        return partial(SharedWorkerPool, self.name, self._user[1], limit)

    def _arguments(self) -> dict[str, Any]:
        """Those of the engine that this slice uses: it may have to start again."""
        arguments = {n: v for n, v in self._worker_arguments().items() if n != "max_model_len"}
        limit = self._identity.limit
        return arguments if limit is None else {**arguments, "max_model_len": limit}

    def _runtime_env(self) -> dict[str, Any]:
        """Its workers' own, complete: otherwise they would inherit that of the job that starts them. Serve
        keeps it for longer than the job, so it holds no secrets."""
        env = {n: v for n, v in _job_environment().items() if n not in _NOT_SHARED and not n.startswith("_")}
        shared = {
            name: value
            for name, value in env.get("env_vars", {}).items()
            if not name.startswith(_NOT_SHARED_VARIABLES) and not is_secret_name(name)
        }
        env["env_vars"] = {**shared, **self.env}
        if (package := package_of_this_code()) is not None:
            env["py_modules"] = [package]
        return env

    @property
    def is_ready(self) -> bool:
        return self._seen.was_running

    def raise_if_broken(self) -> None:
        seen = self._seen
        try:
            deployed, engine = seen.poll.news(_NEWS_SECONDS)
        except Exception:  # Serve's controller restarts or hangs: the stall watch decides
            return
        if not seen.was_running and engine is not None and engine.workers.get("RUNNING"):
            seen.was_running = True
            if seen.was_polled:
                self.startup_seconds = _startup_seconds(self.name)
        seen.was_polled = True
        if deployed and engine is not None and self._cannot_start(engine):
            serve_apps.SERVE.stop_engine(engine.name, force=True, only_failed=True)
            # The message is searched for the cause, as those of Ray's own errors are.
            raise RuntimeError(f"the shared engine could not be started: {engine.message}")
        is_there = not deployed or (engine is not None and engine.is_alive)
        seen.absent_polls = 0 if is_there else seen.absent_polls + 1
        if seen.absent_polls >= _ABSENT_POLLS:  # requests to it would wait forever
            raise SliceError(
                f"the shared engine {self.name} was stopped while this slice used it, by a user or because "
                "it could not be started",
                kind="engine",
                advice="Run the slice again",
            )
        self._make_room_for_worker(engine)

    def _cannot_start(self, engine: SharedEngine) -> bool:
        failed_starts = self._seen.failed_starts
        if engine.workers.get("RUNNING"):
            failed_starts.clear()
        elif engine.fails_to_start:
            failed_starts.add(engine.message)  # Serve's message numbers the failed starts
        return engine.status == "DEPLOY_FAILED" or len(failed_starts) >= _MAX_FAILED_STARTS

    def _make_room_for_worker(self, engine: SharedEngine | None) -> None:
        """Stops an idle engine that took the resources of a worker that this engine lost, as admission does
        for a job."""
        seen = self._seen
        workers: Mapping[str, int] = engine.workers if engine is not None and seen.deployed else {}
        if engine is None or workers.get("RUNNING") or not workers.get("STARTING"):
            seen.workerless_polls = 0
            return
        seen.workerless_polls += 1
        if seen.workerless_polls % _WORKERLESS_POLLS == 0 and not serve_apps.SERVE.has_workers(engine):
            serve_apps.SERVE.stop_idle_engine()

    def is_starting(self) -> bool:
        try:
            _, engine = self._seen.poll.news(_LAST_NEWS_SECONDS)
        except Exception:
            return False
        return engine is not None and serve_apps.SERVE.has_workers(engine)

    def _look(self) -> tuple[bool, SharedEngine | None]:
        deployed = self._seen.deployed
        return deployed, serve_apps.SERVE.engine(self.name)

    def stop(self) -> None:
        super().stop()
        if self._user is not None:
            serve_apps.SERVE.end_use(self.name, self._user[0])
        self._user = self._covering = None
        self._seen = _Observations(Poll(self._look))


class SharedWorkerPool:
    """The workers behind Serve, which picks the less busy one of two for each call."""

    name = "shared"
    process: Mapping[str, Any] = {}
    has_one_stream = False
    largest_call = BATCH

    def __init__(self, engine: str, user: str, limit: int | None, feeder: str) -> None:
        """:param limit: of its rows, where it is lower than the engine's."""
        handle = serve_apps.SERVE.handle(engine)
        self._generate = handle.options(method_name="generate", stream=True)
        self._user, self._limit = user, limit
        self._feeder = feeder
        self._calls = itertools.count()

    def ready(self) -> list[SharedWorkerPool]:
        return [self]  # calls wait at Serve

    def generate(self, rows: pa.Table) -> Iterator[pa.Table]:
        try:
            # A stream of its own: which worker has the earlier calls is unknown.
            yield from self._generate.remote(
                rows, f"{self._user} {self._feeder} {next(self._calls)}", self._user, self._limit
            )
        except Exception as e:
            if not is_death(e):
                raise
            raise WorkerDiedError.of(e) from e  # Serve starts another

    def cancel(self, rows: Sequence[int]) -> None:
        """Nothing: calls cannot be told apart. Rows are asked again only when their worker ended."""

    def silent_s(self) -> float:
        return 0.0  # Serve ends workers that hang

    def leaves_in_s(self) -> float | None:
        return None  # Serve sends nothing to a node that leaves


def _startup_seconds(engine: str) -> Mapping[str, float]:
    """Of one of its workers; {} if that does not respond."""
    try:
        ready = serve_apps.SERVE.handle(engine).options(method_name="ready")
        worker: Mapping[str, Mapping[str, float]] = ready.remote().result(timeout_s=_READY_SECONDS)
    except Exception:  # it died, or is busy; the slice does not depend on it
        return {}
    return worker["startup_seconds"]


def _job_environment() -> dict[str, Any]:
    import ray

    return dict(ray.get_runtime_context().runtime_env)
