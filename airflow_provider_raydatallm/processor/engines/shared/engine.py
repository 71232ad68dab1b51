"""vLLM behind Ray Serve: slices that ask for the same engine have the same one, which outlives their jobs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.replica import SharedVllmReplica
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import Scaling, SharedEngine
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.worker_pool import OpenWorkerPool
from airflow_provider_raydatallm.processor.sizing.cluster_probe import model_files
from airflow_provider_raydatallm.processor.sizing.facts import Resources, SizingInputs
from airflow_provider_raydatallm.processor.sizing.sizes import (
    batches_in_flight,
    default_workers,
    engine_batch_size,
)

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: Of a job's environment, what is its own: code that the engine does not run, and what changes with each.
_NOT_SHARED = ("py_modules",)
_NOT_SHARED_VARIABLES = ("AWS_", "RAY_")
#: Of the options of a worker's actor, what Serve does not see to.
_NEEDS = ("num_cpus", "num_gpus", "accelerator_type")

#: Looks, a second apart, at which an engine is not there before that is believed.
_ABSENT_LOOKS = 3
#: And at which a worker waits for its place: where there is room, it has it by then.
_WORKERLESS_LOOKS = 10
#: Failed starts that are seen of an engine that was there before: memory may not be free again at the first.
_FAILED_STARTS = 2
_TELL_SECONDS = 10


class SharedVllmEngine(VllmEngine):
    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        self._user: tuple[ActorHandle[Any], str] | None = None
        self._know_nothing()

    def _know_nothing(self) -> None:
        """Of the engine, as before a round: it may have been ended since the last one."""
        self._was_there = False
        self._seen: SharedEngine | None = None
        self._absent = self._workerless = 0
        self._failed_starts: set[str] = set()
        self._deployed = False
        self._waited_for = False

    @property
    def needs_past_throughput(self) -> bool:
        return False

    def choose_sizes(self, facts: SizingInputs) -> None:
        super().choose_sizes(facts)
        if facts.cluster is not None and not self.on_cpu:
            # All that there are: Serve starts those that there is work for.
            there = int(facts.cluster.gpus_of(self.job.accelerator_type))
            self._workers_auto = default_workers(there, self.gpus_per_worker, sys.maxsize)
        self._eager = self.on_cpu  # it lives for long enough to be compiled

    @cached_property
    def name(self) -> str:
        """Equal for slices that can share an engine."""
        decides = {
            "arguments": self._arguments(),
            "files": model_files(self.job.model_source),
            "accelerator_type": self.job.accelerator_type,
            "runtime_env": self._runtime_env(),
        }
        text = json.dumps(decides, sort_keys=True, default=str)
        return serve_apps.engine_name(self.job.model_source, hashlib.sha256(text.encode()).hexdigest()[:12])

    @property
    def shared_actor_prefix(self) -> str:  # type: ignore[override]
        return serve_apps.actor_prefix(self.name)

    @property
    def resources_needed_now(self) -> Resources:
        """Without its workers, when those are there: it is not ended by others then, whose turn it is not."""
        if not self._is_there:
            return self.resources
        beside = self.resources.cpus - self.workers[0] * self.cpus_per_worker
        return Resources(beside, 0, "beside a shared engine that is there")

    @property
    def _is_there(self) -> bool:
        """Whether this slice will have the engine as it is."""
        there = serve_apps.shared_engine(self.name)
        if there is None or not there.is_alive or not serve_apps.has_workers(there):
            return False
        is_right = there.deployment == self._scaling.name and not there.fails_to_start
        return is_right or bool(there.users)  # else it is started anew

    @property
    def engine_to_keep(self) -> str | None:
        return self.name if self._is_there else None

    def on_admitted(self) -> None:
        # Until this job's turn is over nobody ends it for its place.
        self._user = serve_apps.register_user(self.name, self.job.slice_path)

    def blocking_engines(self) -> list[str]:
        most = self.job.max_shared_engines
        if most is None:
            return []
        # One that is used is there, also while its worker is replaced.
        there = [e.name for e in serve_apps.shared_engines() if e.workers or e.users]
        if self.name in there or len(there) < most:
            return []
        return [f"shared engine {name}" for name in there]

    @property
    def _scaling(self) -> Scaling:
        # By what any slice may ask, not by what this one does: a larger one may come after it.
        most, batch = self.sizes.max_num_seqs, self.job.batch_size or engine_batch_size(sys.maxsize, 1)
        batches = self.job.max_concurrent_batches or batches_in_flight(batch, most)
        return Scaling(self.workers, batches, self.job.engine_idle_timeout)

    def _start(self) -> OpenWorkerPool:
        assert self._user is not None
        own = self._options()
        serve_apps.ensure_running(
            self.name,
            self._scaling,
            SharedVllmReplica,
            (self._arguments(),),
            **{name: own[name] for name in _NEEDS if own.get(name) is not None},
            runtime_env=self._runtime_env(),
        )
        self._deployed = True
        return partial(SharedWorkerPool, self.name, self._user[1])

    def _runtime_env(self) -> dict[str, Any]:
        """Of its workers, said in full: they would have that of the job that started them."""
        import ray

        env = {
            name: value
            for name, value in dict(ray.get_runtime_context().runtime_env).items()
            if name not in _NOT_SHARED and not name.startswith("_")
        }
        variables = {
            name: value
            for name, value in env.get("env_vars", {}).items()
            if not name.startswith(_NOT_SHARED_VARIABLES)
        }
        env["env_vars"] = {**variables, **self.env}
        if (package := _package_of_this_code()) is not None:
            env["py_modules"] = [package]
        return env

    @property
    def is_ready(self) -> bool:
        return self._was_there

    def raise_if_broken(self) -> None:
        deployed = self._deployed  # before it is looked at: one that failed another slice is started anew
        engine = self._look()
        if not self._was_there and engine is not None and engine.workers.get("RUNNING"):
            self._was_there = True
            if self._waited_for:
                self.startup_seconds = _start_of(self.name)
        self._waited_for = True
        if deployed and engine is not None and self._gives_up(engine):
            serve_apps.stop_engine(engine.name, force=True, only_failed=True)
            # Text, in which the cause is looked for as in any other error of Ray's.
            raise RuntimeError(f"the shared engine could not be started: {engine.message}")
        is_there = not self._deployed or (engine is not None and engine.is_alive)
        self._absent = 0 if is_there else self._absent + 1
        if self._absent >= _ABSENT_LOOKS:  # who asks it now would wait for ever
            raise SliceError(
                f"the shared engine {self.name} was ended while this slice used it: somebody stopped it, or "
                "it could not be started. Finished rows are kept, and a retry goes on with the others",
                kind="engine",
            )
        self._keep_its_place(engine)

    def _gives_up(self, engine: SharedEngine) -> bool:
        """By this look and those before: it cannot be started."""
        if engine.workers.get("RUNNING"):
            self._failed_starts.clear()
        elif engine.fails_to_start:
            self._failed_starts.add(engine.message)  # in which Serve counts them
        return engine.status == "DEPLOY_FAILED" or len(self._failed_starts) >= _FAILED_STARTS

    def _keep_its_place(self, engine: SharedEngine | None) -> None:
        """An engine that lost its worker may find that another took its place: that one gives way when nobody
        uses it, as it does to a job whose turn it is."""
        workers: Mapping[str, int] = engine.workers if engine is not None and self._deployed else {}
        if engine is None or workers.get("RUNNING") or not workers.get("STARTING"):
            self._workerless = 0
            return
        self._workerless += 1
        if self._workerless % _WORKERLESS_LOOKS == 0 and not serve_apps.has_workers(engine):
            serve_apps.stop_idle_engine()

    def is_starting(self) -> bool:
        engine = self._look()
        return engine is not None and serve_apps.has_workers(engine)

    def _look(self) -> SharedEngine | None:
        """What was seen last, when it cannot be told: Serve's controller is started anew, too."""
        with contextlib.suppress(Exception):
            self._seen = serve_apps.shared_engine(self.name)
        return self._seen

    def stop(self) -> None:
        import ray

        super().stop()
        if self._user is not None:
            ray.kill(self._user[0])
            self._user = None
        self._know_nothing()


class SharedWorkerPool:
    """The workers behind Serve, which chooses who is asked: of two the less busy one."""

    process: Mapping[str, Any] = {}

    def __init__(self, engine: str, user: str) -> None:
        self._handle = serve_apps.get_handle(engine).options(method_name="generate", stream=True)
        self._user = user

    @contextlib.contextmanager
    def least_busy(self, rows: int) -> Iterator[SharedWorkerPool]:
        yield self

    def generate(self, batch: pa.Table) -> Iterator[pa.Table]:
        from ray.exceptions import RayActorError

        try:
            yield from self._handle.remote(batch, self._user)
        except RayActorError:  # it died; Serve starts another
            return


def _start_of(engine: str) -> Mapping[str, float]:
    """What the start of one of its workers took; nothing where it does not say."""
    try:
        ready = serve_apps.get_handle(engine).options(method_name="ready")
        told: Mapping[str, Mapping[str, float]] = ready.remote().result(timeout_s=_TELL_SECONDS)
    except Exception:  # it died, or is busy: the slice goes on
        return {}
    return told["start"]


def _package_of_this_code() -> str | None:
    """Where Ray has the package that this code came in; None when it is installed on the nodes."""
    parts = Path(__file__).parts
    return next((f"gcs://{p}.zip" for p in parts if p.startswith("_ray_pkg_")), None)
