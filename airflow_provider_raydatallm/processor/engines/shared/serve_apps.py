"""Engines that outlive a job, as Ray Serve applications: listed, used, started and stopped.

Each is an application with one deployment. Serve keeps its workers alive, replaces those that die, and scales
between none and the most. This module adds what Serve does not know: which applications are engines (the
cluster's store has the name of each one's deployment, with a nonce: users may have applications of any name),
which jobs use an engine (a mark per job, which ends with it), that no two jobs start the same one, and which
may stop to make room.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_provider_raydatallm.contract.job.environment import inherited
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared.identity import Identity
from airflow_provider_raydatallm.processor.ray_runtime import marks
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import call_within
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import ClusterStore
from airflow_provider_raydatallm.processor.ray_runtime.slow_imports import import_serve, serve_imports

T = TypeVar("T")

#: Engines' scalings and nonces, by application.
_ENGINES = ClusterStore.of_kind("engine")
#: What each runs (`Identity`).
_IDENTITIES = ClusterStore.of_kind("engine-identity")
#: What each of its workers holds: GPUs, and bytes of memory.
_WORKERS = ClusterStore.of_kind("engine-worker")
#: When a slice last began or ended to use each, in seconds since 1970.
_USED = ClusterStore.of_kind("engine-used")
_USER = "user "
_LOCK = "shared engines"
_SERVE_NAMESPACE = "serve"
#: Serve's own limits are for web services: here batches wait in the worker, which shares its slots fairly.
_MAX_BATCHES = 100_000
_DRAIN_SECONDS = 3600.0
_DELETE_SECONDS = 60.0
_START_SECONDS = 180.0
#: `serve.run` would open a port. By default, Serve would leave a hanging worker its GPU for `_DRAIN_SECONDS`,
#: and warn of each engine that takes over 30 s to start, as engines do.
_START_SERVE = (
    "import ray; ray.init(logging_level='error', log_to_driver=False, runtime_env={'env_vars': "
    "{'RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS': '1', 'RAY_SERVE_SLOW_STARTUP_WARNING_S': '900'}}); "
    "from ray import serve; "
    "serve.start(proxy_location='Disabled')"
)
#: How long a restart of Serve's controller may take, and how long it may take to answer.
_CONTROLLER_SECONDS = 30
#: More than a job needs to stop an engine, start Serve and deploy another engine.
_LOCK_SECONDS = 600.0
_HEALTH_SECONDS = 5.0
_UPSCALE_SECONDS = 10.0


@dataclass(frozen=True)
class SharedEngine:
    """scaling: the name of its `Scaling`. workers: their number by state (RUNNING, STARTING, ...). users:
    slices that use it now. trigger: what made Serve set the status. identity: None of one that is ending.
    idle_s: seconds since a slice used it; of one whose last slice died, since that slice began. worker:
    resources that each worker holds.
    """

    name: str
    status: str
    message: str
    scaling: str
    workers: Mapping[str, int]
    users: tuple[str, ...]
    trigger: str = ""
    identity: Identity | None = None
    idle_s: float = 0.0
    worker: Mapping[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> dict[str, float]:
        """GPUs, and bytes of memory: what Ray reserves for its workers."""
        workers = sum(self.workers.values())
        return {name: amount * workers for name, amount in self.worker.items() if workers}

    @property
    def limit(self) -> float:
        """Tokens of a prompt plus its answer, as far as they are set."""
        limit = self.identity.limit if self.identity is not None else None
        return math.inf if limit is None else limit

    @property
    def is_alive(self) -> bool:
        return self.status not in ("DEPLOY_FAILED", "DELETING", "NOT_STARTED")

    @property
    def fails_to_start(self) -> bool:
        """It has no worker, and the last one could not start. Serve gives up only engines that never had a
        worker, and retries others without end."""
        return self.trigger == "REPLICA_STARTUP_FAILED" and not self.workers.get("RUNNING")


@dataclass(frozen=True)
class Scaling:
    """:param workers: at the start, and at most.
    :param batches: that keep a worker busy.
    :param idle_timeout: seconds without work before the engine scales to zero; None: never.
    """

    workers: tuple[int, int]
    batches: int
    idle_timeout: float | None

    @property
    def name(self) -> str:
        low, high = self.workers
        idle = "kept" if self.idle_timeout is None else f"{self.idle_timeout:g}-s"
        return f"workers-{low}-to-{high}-idle-{idle}"

    def options(self) -> dict[str, Any]:
        low, high = self.workers
        return {
            "min_replicas": low if self.idle_timeout is None else 0,
            "initial_replicas": low,
            "max_replicas": high,
            "target_ongoing_requests": self.batches,
            "upscale_delay_s": _UPSCALE_SECONDS,
            "downscale_delay_s": 600.0 if self.idle_timeout is None else self.idle_timeout,
        }


class ServeApps:
    """The shared engines of the cluster that this process is connected to."""

    def engines(self) -> list[SharedEngine]:
        if not _is_serve_running():
            return []
        engines, claims = [], marks.marks(_USER)
        for name, app in self._status().applications.items():
            if (own := _ENGINES.get(name)) is None:
                continue
            [(deployment, overview)] = list(app.deployments.items())[:1] or [("", None)]
            if deployment not in ("", own):
                continue  # somebody's own has taken the name
            states = overview.replica_states if overview is not None else {}
            workers = {getattr(state, "value", str(state)): count for state, count in states.items() if count}
            message = " ".join(filter(None, (app.message, overview.message if overview is not None else "")))
            users = tuple(c.split(" ", 2)[2] for c in claims if c.startswith(f"{name} "))
            trigger = str(overview.status_trigger.value) if overview is not None else ""
            status = str(app.status.value)
            scaling = deployment.rpartition("-")[0]
            identity = Identity.from_json(text) if (text := _IDENTITIES.get(name)) else None
            idle_s = 0.0 if users else max(0.0, time.time() - float(_USED.get(name) or time.time()))
            held = json.loads(_WORKERS.get(name) or "{}")
            engines.append(
                SharedEngine(name, status, message, scaling, workers, users, trigger, identity, idle_s, held)
            )
        return engines

    def engine(self, name: str) -> SharedEngine | None:
        return next((e for e in self.engines() if e.name == name), None)

    def users(self, engine: str) -> list[str]:
        """The jobs that use it: an id and the slice."""
        return marks.marks(f"{_USER}{engine} ")

    def register_user(self, engine: str, slice_path: str, model_token: str = "") -> tuple[marks.Mark, str]:
        """Marks an engine as used by this job. Returns the mark, and the user's name.

        :param model_token: the model hub's, lent to workers that start while the mark is there.
        """
        user = f"{uuid.uuid4().hex[:8]} {slice_path}"
        mark = marks.Mark.set(f"{_USER}{engine} {user}", model_token)
        self._note_use(engine)
        return mark, user

    def end_use(self, engine: str, mark: marks.Mark) -> None:
        self._note_use(engine)
        mark.remove()

    def _note_use(self, engine: str) -> None:
        if _ENGINES.get(engine) is not None:  # else its key would be left
            _USED.put(engine, str(time.time()))

    def model_token(self, engine: str) -> str | None:
        """The model hub's token of a job that uses the engine, if one has any."""
        return next(filter(None, marks.values(f"{_USER}{engine} ")), None)

    def handle(self, engine: str) -> Any:
        """The Serve handle that calls its workers."""
        serve = import_serve()
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        return _ask_controller(lambda: serve.get_app_handle(engine))

    def has_workers(self, engine: SharedEngine) -> bool:
        """Whether a worker runs or loads its model. One that only waits for resources does not count."""
        from ray.util.state import list_actors

        if not engine.workers.get("STARTING"):
            return any(state != "STOPPING" for state in engine.workers)
        try:
            actors = list_actors(
                detail=True, limit=10_000, filters=[("ray_namespace", "=", _SERVE_NAMESPACE)]
            )
        except Exception:  # no dashboard
            return True
        prefix = actor_prefix(engine.name)
        return any(a.pid for a in actors if a.name.startswith(prefix) and a.state != "DEAD")

    def ensure_running(
        self,
        identity: Identity,
        scaling: Scaling,
        worker: type,
        arguments: tuple[Any, ...],
        *,
        bundles: list[dict[str, float]],
        **options: Any,
    ) -> None:
        """Starts an engine unless it runs or starts already. Restarts one with another scaling, unless others
        use it.

        :param bundles: of each worker's placement group, which holds its actor first; [] for none.
        :param options: of the worker's actor.
        """
        serve = import_serve()
        from ray.serve.api import RunTarget, run_many

        name = identity.name
        with self._lock():
            engine = self.engine(name)
            if engine is not None:
                others_use_it = len(engine.users) > 1
                is_right = engine.scaling == scaling.name and not engine.fails_to_start
                if engine.is_alive and (is_right or others_use_it):
                    return
                self._delete(name, force=engine.fails_to_start)
            self._start_serve()
            self._delete_unused()
            if name in self._status().applications:
                raise SliceError(
                    f"the cluster has a Ray Serve application {name!r} that no slice has started, and the "
                    "shared engine is to have that name",
                    kind="engine",
                    advice="Delete it (serve.delete), or give it another name",
                )
            own_name = f"{scaling.name}-{uuid.uuid4().hex[:8]}"
            _ENGINES.put(name, own_name)
            _IDENTITIES.put(name, identity.to_json())
            _WORKERS.put(name, json.dumps(_held_by_worker(bundles, options)))
            self._note_use(name)
            deployment = serve.deployment(
                worker,
                name=own_name,
                max_ongoing_requests=_MAX_BATCHES,
                autoscaling_config=scaling.options(),
                # A surplus worker finishes its batches; one without any stops at once.
                graceful_shutdown_timeout_s=_DRAIN_SECONDS,
                graceful_shutdown_wait_loop_s=0.5,
                health_check_period_s=_HEALTH_SECONDS,
                max_constructor_retry_count=1,
                ray_actor_options=options,
                placement_group_bundles=bundles or None,
                logging_config={"enable_access_log": False, "log_level": "WARNING"},
            )
            target = RunTarget(target=deployment.bind(name, *arguments), name=name, route_prefix=None)
            _within_limit(lambda: run_many([target], wait_for_applications_running=False))

    def stop_engine(self, name: str, *, force: bool = False, only_failed: bool = False) -> bool:
        """Stops an engine that no slice uses. Returns whether it is gone.

        :param force: also one in use, without waiting for its batches.
        :param only_failed: only one that could not start: another may have been started since that was seen.
        """
        with self._lock():
            engine = self.engine(name)
            if engine is None:
                return True
            if engine.users and not force:
                return False
            if only_failed and engine.status != "DEPLOY_FAILED" and not engine.fails_to_start:
                return False
            self._delete(name, force=force)
            return True

    def stop_idle_engine(self, *, keep: str | None = None) -> None:
        """Makes room: stops one engine that has workers but no users, if there is one: the one idle longest.
        A slice that begins to use it at this moment starts it again (`ensure_running`).

        :param keep: name of an engine not to stop.
        """
        try:
            engines = self.engines()
        except Exception:  # Serve's controller is restarting
            return
        for engine in sorted(engines, key=lambda e: -e.idle_s):
            with contextlib.suppress(SliceError):
                is_idle = engine.workers and not engine.users and engine.name != keep
                if is_idle and self.stop_engine(engine.name):
                    return

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return marks.cluster_lock(_LOCK, _LOCK_SECONDS)

    def _status(self) -> Any:
        return _ask_controller(import_serve().status)

    def _delete(self, name: str, *, force: bool = False) -> None:
        """:raises SliceError: when the engine does not stop in time."""
        import ray
        from ray.util import list_named_actors

        serve = import_serve()
        _within_limit(lambda: serve.delete(name, _blocking=False))
        if force:
            for actor in list_named_actors(all_namespaces=True):
                if actor["namespace"] == _SERVE_NAMESPACE and actor["name"].startswith(actor_prefix(name)):
                    with contextlib.suppress(ValueError):
                        ray.kill(ray.get_actor(actor["name"], namespace=_SERVE_NAMESPACE))
        deadline = time.monotonic() + _DELETE_SECONDS
        while self.engine(name) is not None:
            if time.monotonic() > deadline:
                message = f"the shared engine {name} did not stop within {_DELETE_SECONDS:g} s"
                raise SliceError(message, kind="engine")
            time.sleep(0.5)
        for store in (_ENGINES, _IDENTITIES, _WORKERS, _USED):
            store.delete(name)

    def _delete_unused(self) -> None:
        """Removes engines that scaled to zero and have no users: Serve would keep and list them forever."""
        for engine in self.engines():
            if not engine.workers and not engine.users:
                with contextlib.suppress(SliceError):
                    self._delete(engine.name)

    def _start_serve(self) -> None:
        """Starts Serve by a job of its own, unless it runs: Serve's controller inherits the environment of
        the job that starts it, with its secrets, and passes it on to every engine."""
        import ray

        if _is_serve_running():
            return
        context = ray.get_runtime_context()
        own = {*dict(context.runtime_env).get("env_vars", {}), "RAY_JOB_CONFIG_JSON_ENV_VAR"}
        # RAY_...: how to connect to the cluster, and as whom.
        rays = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        environment = {n: v for n, v in (inherited(os.environ) | rays).items() if n not in own}
        try:
            process = subprocess.run(
                [sys.executable, "-c", _START_SERVE],
                env=environment | {"RAY_ADDRESS": context.gcs_address},
                capture_output=True,
                text=True,
                timeout=_START_SECONDS,
            )
        except subprocess.TimeoutExpired as e:
            raise SliceError(f"Ray Serve did not start within {_START_SECONDS:g} s", kind="engine") from e
        if process.returncode:
            raise SliceError(f"Ray Serve could not be started: {process.stderr[-1000:]}", kind="cluster")


#: Looked up at each use, so that tests can replace it.
SERVE = ServeApps()


def _held_by_worker(bundles: list[dict[str, float]], options: Mapping[str, Any]) -> dict[str, float]:
    gpus = sum(bundle.get("GPU", 0) for bundle in bundles) or options.get("num_gpus")
    return {n: v for n, v in (("GPU", gpus), ("memory", options.get("memory"))) if v}


def actor_prefix(engine: str) -> str:
    """Name prefix of its workers' actors."""
    return f"SERVE_REPLICA::{engine}#"


def _ask_controller(ask: Callable[[], T]) -> T:
    """Retries while Serve's controller restarts and recovers its state."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    deadline = time.monotonic() + _CONTROLLER_SECONDS
    while True:
        try:
            return _within_limit(ask)
        except (RayError, RayServeException):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _within_limit(ask: Callable[[], T]) -> T:
    """Calls Serve's client, which waits for ever for a controller that hangs.

    :raises SliceError: when it does.
    """
    try:
        return call_within(_CONTROLLER_SECONDS, ask)
    except TimeoutError as e:
        raise SliceError(
            f"Ray Serve's controller did not answer within {_CONTROLLER_SECONDS} s",
            kind="engine",
            advice="Does it hang?",
        ) from e


def _is_serve_running() -> bool:
    import ray

    try:
        with serve_imports():  # by the class of the actor
            ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace=_SERVE_NAMESPACE)
    except ValueError:
        return False
    return True
