"""Engines that outlive a job, hosted by Ray Serve: which there are, who uses them, starting and ending them.

Each is a Serve application with one deployment. Serve keeps its workers alive, replaces those that die, and
scales between none and the most that was asked for. What it does not know is kept here: which jobs use an
engine (an actor each, which ends with its job), that no two jobs start the same one, and which may be ended
when another needs its place.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.processor.named import claim, claimed, only_one

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: How the names of the applications begin that are this provider's.
PREFIX = "ray-llm-"
_USER = "user "
_LOCK = "shared engines"
#: Serve's own limits, made for web services: batches wait in the worker, which knows whose turn it is.
_MOST_BATCHES = 100_000
_STOP_SECONDS = 5.0
_HEALTH_SECONDS = 5.0
_UPSCALE_SECONDS = 10.0


@dataclass(frozen=True)
class SharedEngine:
    """workers: how many are there by state (RUNNING, STARTING, ...). users: slices that have it now."""

    name: str
    status: str
    message: str
    deployment: str
    workers: Mapping[str, int]
    users: tuple[str, ...]

    @property
    def is_alive(self) -> bool:
        return self.status not in ("DEPLOY_FAILED", "DELETING", "NOT_STARTED")


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
    from ray import serve

    found = []
    for name, app in serve.status().applications.items():
        if not name.startswith(PREFIX):
            continue
        [(deployment, overview)] = list(app.deployments.items())[:1] or [("", None)]
        states = overview.replica_states if overview is not None else {}
        workers = {getattr(state, "value", str(state)): count for state, count in states.items() if count}
        message = " ".join(filter(None, (app.message, overview.message if overview is not None else "")))
        using = tuple(u.split(" ", 1)[1] for u in users(name))
        found.append(SharedEngine(name, str(app.status.value), message, deployment, workers, using))
    return found


def shared_engine(name: str) -> SharedEngine | None:
    return next((e for e in shared_engines() if e.name == name), None)


def users(engine: str) -> list[str]:
    """The jobs that use it: a number and the slice."""
    return claimed(f"{_USER}{engine} ")


def use(engine: str, slice_path: str) -> tuple[ActorHandle[Any], str]:
    """Have the others see that this job uses an engine, which is not ended before the actor is; and who this
    is for the engine."""
    user = f"{uuid.uuid4().hex[:8]} {slice_path}"
    actor = claim(f"{_USER}{engine} {user}")
    assert actor is not None
    return actor, user


def ensure(name: str, scaling: Scaling, worker: type, arguments: tuple[Any, ...], **options: Any) -> None:
    """Have an engine there, or on its way. One that others use stays as it is; else it is started anew when
    its scaling is another.

    :param options: of the worker's actor.
    """
    from ray import serve
    from ray.serve.api import RunTarget, run_many

    with only_one(_LOCK):
        there = shared_engine(name)
        if there is not None:
            others_use_it = len(there.users) > 1
            if there.is_alive and (there.deployment == scaling.name or others_use_it):
                return
            serve.delete(name)
        serve.start(proxy_location="Disabled")  # it would open a port
        deployment = serve.deployment(
            worker,
            name=scaling.name,
            max_ongoing_requests=_MOST_BATCHES,
            autoscaling_config=scaling.options(),
            graceful_shutdown_timeout_s=_STOP_SECONDS,
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


def end(name: str, *, although_used: bool = False) -> bool:
    """End an engine that nobody uses; whether it was."""
    from ray import serve

    with only_one(_LOCK):
        if not _serve_runs() or (users(name) and not although_used):
            return False
        serve.delete(name)
        return True


def end_an_idle_engine() -> None:
    """Make room: end one that has workers and no users, if there is one."""
    for engine in shared_engines():
        if engine.workers and not engine.users and end(engine.name):
            return


def name_of(model_source: str, fingerprint: str) -> str:
    model = re.sub(r"[^A-Za-z0-9_.-]+", "-", model_source.rstrip("/").rpartition("/")[2])[:40]
    return f"{PREFIX}{model}-{fingerprint}"


def _serve_runs() -> bool:
    import ray

    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True
