"""Engines that outlive a job, hosted by Ray Serve: which there are, who uses them, starting and ending them.

Each is a Serve application with one deployment. Serve keeps its workers alive, replaces those that die, and
scales between none and the most that was asked for. What it does not know is kept here: which jobs use an
engine (an actor each, which ends with its job), that no two jobs start the same one, and which may be ended
when another needs its place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime.named_actors import (
    cluster_lock,
    create_named_actor,
    named_actors,
)

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: How the names of the applications begin that are this provider's.
PREFIX = "ray-llm-"
_USER = "user "
_LOCK = "shared engines"
#: Serve's own limits, made for web services: batches wait in the worker, which knows whose turn it is.
_MOST_BATCHES = 100_000
_FINISH_SECONDS = 3600.0
_DELETE_SECONDS = 60.0
_START_SECONDS = 180.0
_SERVE = "serve"
#: `serve.run` would open a port. A worker that does not answer does not finish what it has either: by default
#: Serve would leave it its GPU for `_FINISH_SECONDS`.
_START_SERVE = (
    "import ray; ray.init(logging_level='error', log_to_driver=False, runtime_env={'env_vars': "
    "{'RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS': '1'}}); from ray import serve; "
    "serve.start(proxy_location='Disabled')"
)
#: Seconds in which Serve's controller is started anew when it died.
_CONTROLLER_SECONDS = 30
_HEALTH_SECONDS = 5.0
_UPSCALE_SECONDS = 10.0


@dataclass(frozen=True)
class SharedEngine:
    """workers: how many are there by state (RUNNING, STARTING, ...). users: slices that have it now. trigger:
    what made Serve give it its status."""

    name: str
    status: str
    message: str
    deployment: str
    workers: Mapping[str, int]
    users: tuple[str, ...]
    trigger: str = ""

    @property
    def is_alive(self) -> bool:
        return self.status not in ("DEPLOY_FAILED", "DELETING", "NOT_STARTED")

    @property
    def fails_to_start(self) -> bool:
        """It has no worker, and the last one could not start. Serve gives up an engine that never
        had one, and tries again without end where there was one before."""
        return self.trigger == "REPLICA_STARTUP_FAILED" and not self.workers.get("RUNNING")


@dataclass(frozen=True)
class Scaling:
    """The fewest workers that it begins with, the most, batches that keep one busy, and seconds without work
    after which it has none; None: it keeps the fewest."""

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
        idle = self.idle_timeout if self.idle_timeout is not None else 600.0
        return {
            "min_replicas": low if self.idle_timeout is None else 0,
            "initial_replicas": low,
            "max_replicas": high,
            "target_ongoing_requests": self.batches,
            "upscale_delay_s": _UPSCALE_SECONDS,
            "downscale_delay_s": idle,
        }


def shared_engines() -> list[SharedEngine]:
    """Those of the cluster that this process is connected to."""
    if not _serve_runs():
        return []
    found, claims = [], named_actors(_USER)
    for name, app in _status().applications.items():
        if not name.startswith(PREFIX):
            continue
        [(deployment, overview)] = list(app.deployments.items())[:1] or [("", None)]
        states = overview.replica_states if overview is not None else {}
        workers = {getattr(state, "value", str(state)): count for state, count in states.items() if count}
        message = " ".join(filter(None, (app.message, overview.message if overview is not None else "")))
        using = tuple(c.split(" ", 2)[2] for c in claims if c.startswith(f"{name} "))
        trigger = str(overview.status_trigger.value) if overview is not None else ""
        found.append(SharedEngine(name, str(app.status.value), message, deployment, workers, using, trigger))
    return found


def shared_engine(name: str) -> SharedEngine | None:
    return next((e for e in shared_engines() if e.name == name), None)


def users(engine: str) -> list[str]:
    """The jobs that use it: a number and the slice."""
    return named_actors(f"{_USER}{engine} ")


def register_user(engine: str, slice_path: str) -> tuple[ActorHandle[Any], str]:
    """Have the others see that this job uses an engine, which is not ended before the actor is; and who this
    is for the engine."""
    user = f"{uuid.uuid4().hex[:8]} {slice_path}"
    actor = create_named_actor(f"{_USER}{engine} {user}")
    assert actor is not None
    return actor, user


def ensure_running(
    name: str, scaling: Scaling, worker: type, arguments: tuple[Any, ...], **options: Any
) -> None:
    """Have an engine there, or on its way. One that others use stays as it is; else it is started anew when
    its scaling is another.

    :param options: of the worker's actor.
    """
    from ray import serve
    from ray.serve.api import RunTarget, run_many

    with cluster_lock(_LOCK):
        there = shared_engine(name)
        if there is not None:
            others_use_it = len(there.users) > 1
            is_right = there.deployment == scaling.name and not there.fails_to_start
            if there.is_alive and (is_right or others_use_it):
                return
            _delete(name, at_once=there.fails_to_start)
        _start_serve()
        _forget_unused()
        deployment = serve.deployment(
            worker,
            name=scaling.name,
            max_ongoing_requests=_MOST_BATCHES,
            autoscaling_config=scaling.options(),
            # One that is too many finishes what it has; one without work ends at once.
            graceful_shutdown_timeout_s=_FINISH_SECONDS,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=_HEALTH_SECONDS,
            max_constructor_retry_count=1,
            ray_actor_options=options,
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
        )
        run_many(
            [RunTarget(target=deployment.bind(name, *arguments), name=name, route_prefix=None)],
            wait_for_applications_running=False,
        )


def stop_engine(name: str, *, force: bool = False, only_failed: bool = False) -> bool:
    """End an engine that nobody uses; whether it is gone.

    :param force: also one in use, without waiting for what it answers.
    :param only_failed: only one that could not be started: since that was seen, another may have been.
    """
    with cluster_lock(_LOCK):
        there = shared_engine(name)
        if there is None:
            return True
        if there.users and not force:
            return False
        if only_failed and there.status != "DEPLOY_FAILED" and not there.fails_to_start:
            return False
        _delete(name, at_once=force)
        return True


def stop_idle_engine(*, keep: str | None = None) -> None:
    """Make room: end one that has workers and no users, if there is one.

    :param keep: the name of one that stays.
    """
    try:
        there = shared_engines()
    except Exception:  # Serve's controller cannot tell for now
        return
    for engine in there:
        with contextlib.suppress(SliceError):
            if engine.name != keep and engine.workers and not engine.users and stop_engine(engine.name):
                return


def has_workers(engine: SharedEngine) -> bool:
    """Whether it has what it needs: a worker that is there, or that loads its model. One that only waits for
    its place counts as none."""
    from ray.util.state import list_actors

    if not engine.workers.get("STARTING"):
        return any(state != "STOPPING" for state in engine.workers)
    try:
        found = list_actors(detail=True, limit=10_000, filters=[("ray_namespace", "=", _SERVE)])
    except Exception:  # no dashboard to ask
        return True
    mine = [a for a in found if a.name.startswith(actor_prefix(engine.name)) and a.state != "DEAD"]
    return any(a.pid for a in mine)


def actor_prefix(engine: str) -> str:
    """How the names of its workers' actors begin."""
    return f"SERVE_REPLICA::{engine}#"


def _delete(name: str, *, at_once: bool = False) -> None:
    """:raises SliceError: when it does not end."""
    import ray
    from ray import serve
    from ray.util import list_named_actors

    serve.delete(name, _blocking=False)
    if at_once:
        for actor in list_named_actors(all_namespaces=True):
            if actor["namespace"] == _SERVE and actor["name"].startswith(actor_prefix(name)):
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(actor["name"], namespace=_SERVE))
    deadline = time.monotonic() + _DELETE_SECONDS
    while shared_engine(name) is not None:
        if time.monotonic() > deadline:
            raise SliceError(f"the shared engine {name} does not end", kind="engine")
        time.sleep(0.5)


def _forget_unused() -> None:
    """Remove what scaled to zero and nobody uses: Serve would keep it, and tell of it, for ever."""
    for engine in shared_engines():
        if not engine.workers and not engine.users:
            with contextlib.suppress(SliceError):
                _delete(engine.name)


def _start_serve() -> None:
    """Start Serve, unless it is there, by a job of its own: its controller has the environment of the job
    that starts it, with all that is secret there, and hands it on to every engine."""
    import ray

    if _serve_runs():
        return
    context = ray.get_runtime_context()
    own = {*dict(context.runtime_env).get("env_vars", {}), "RAY_JOB_CONFIG_JSON_ENV_VAR"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(
        [sys.executable, "-c", _START_SERVE],
        env=environment | {"RAY_ADDRESS": context.gcs_address},
        capture_output=True,
        text=True,
        timeout=_START_SECONDS,
    )
    if done.returncode:
        raise SliceError(f"Ray Serve could not be started: {done.stderr[-1000:]}", kind="cluster")


def engine_name(model_source: str, fingerprint: str) -> str:
    model = re.sub(r"[^A-Za-z0-9_.-]+", "-", model_source.rstrip("/").rpartition("/")[2])[:40]
    return f"{PREFIX}{model}-{fingerprint}"


def _status() -> Any:
    from ray import serve

    return _from_controller(serve.status)


def get_handle(engine: str) -> Any:
    """To ask its workers by."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    return _from_controller(lambda: serve.get_app_handle(engine))


def _from_controller(ask: Callable[[], Any]) -> Any:
    """What Serve's controller says, which is started anew when it died, and then learns again what there
    is."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    deadline = time.monotonic() + _CONTROLLER_SECONDS
    while True:
        try:
            return ask()
        except (RayError, RayServeException):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _serve_runs() -> bool:
    import ray

    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace=_SERVE)
    except ValueError:
        return False
    return True
