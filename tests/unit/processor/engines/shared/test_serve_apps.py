"""The shared engines of a cluster: listed, started and stopped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.identity import Identity
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import (
    Scaling,
    ServeApps,
    SharedEngine,
)
from airflow_provider_raydatallm.processor.ray_runtime import marks
from tests.support.key_value_store import replace_store

#: Ray's own, while it imports.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")

SCALING = Scaling((1, 2), 32, 600)
IDENTITY = Identity("m", {"model": "m"}, "f")
OTHER = Scaling((1, 1), 32, 600)
ENGINE = SharedEngine(IDENTITY.name, "RUNNING", "", SCALING.name, {"RUNNING": 1}, ())
FAILING = replace(ENGINE, status="UNHEALTHY", trigger="REPLICA_STARTUP_FAILED", workers={"STARTING": 1})


class State(Enum):
    """As Serve has it, in some versions."""

    RUNNING = "RUNNING"


class FakeApps(ServeApps):
    """Has the engines that a test gives it. Whoever starts or stops one must hold the lock."""

    def __init__(self, *engines: SharedEngine) -> None:
        self.present = list(engines)
        self.deleted: list[tuple[str, bool]] = []
        self.of_others: tuple[str, ...] = ()
        self.is_locked = False

    def engines(self) -> list[SharedEngine]:
        return self.present

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.is_locked = True
        yield
        self.is_locked = False

    def _delete(self, name: str, *, force: bool = False) -> None:
        assert self.is_locked
        self.deleted.append((name, force))
        self.present = [e for e in self.present if e.name != name]

    def _start_serve(self) -> None:
        assert self.is_locked

    def _status(self) -> Any:
        return SimpleNamespace(applications=dict.fromkeys(self.of_others))


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    return replace_store(monkeypatch)


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Serve is given to deploy."""
    targets: list[Any] = []

    def run_many(apps: list[Any], *, wait_for_applications_running: bool) -> None:
        assert not wait_for_applications_running
        targets.extend(apps)

    monkeypatch.setattr("ray.serve.api.run_many", run_many)
    return targets


#: Of a worker on two nodes.
BUNDLES = [{"CPU": 1.0, "GPU": 1.0}, {"GPU": 1.0}]


class Worker:
    def __init__(self, app: str, arguments: dict[str, Any]) -> None:
        pass


def ensure(apps: ServeApps, scaling: Scaling) -> None:
    apps.ensure_running(
        IDENTITY, scaling, Worker, ({"model": "m"},), bundles=BUNDLES, num_cpus=1, runtime_env={}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "scaling", "is_deployed"),
    [
        (None, SCALING, True),
        (replace(ENGINE, users=("me",)), SCALING, False),
        (replace(ENGINE, users=("me",)), OTHER, True),
        (replace(ENGINE, users=("another", "me")), OTHER, False),
        (replace(ENGINE, users=("another", "me"), status="DEPLOY_FAILED"), SCALING, True),
        (replace(FAILING, users=("me",)), SCALING, True),
        (replace(FAILING, users=("another", "me")), SCALING, False),  # who decide for themselves
        (replace(FAILING, users=("me",), workers={"RUNNING": 1}), SCALING, False),  # another one started
    ],
)
def test_engine_is_restarted_unless_it_has_the_scaling_or_others_use_it(
    deployed: list[Any], engine: SharedEngine | None, scaling: Scaling, is_deployed: bool
) -> None:
    apps = FakeApps(engine) if engine is not None else FakeApps()
    ensure(apps, scaling)
    assert bool(deployed) == is_deployed
    deleted = [(ENGINE.name, engine.fails_to_start)] if engine is not None and is_deployed else []
    assert apps.deleted == deleted


def test_engine_is_deployed_with_its_options(deployed: list[Any]) -> None:
    ensure(FakeApps(), SCALING)
    [target] = deployed
    assert (target.name, target.route_prefix) == (ENGINE.name, None)  # not reachable by HTTP
    deployment = target.target._bound_deployment
    assert deployment.name.startswith(f"{SCALING.name}-")
    assert deployment.init_args == (ENGINE.name, {"model": "m"})
    assert deployment.ray_actor_options == {"num_cpus": 1, "runtime_env": {}}
    assert deployment._replica_config.placement_group_bundles == BUNDLES
    config = deployment._deployment_config
    assert config.autoscaling_config.initial_replicas == 1
    # Batches wait in the worker, and a surplus worker finishes them.
    assert (config.max_ongoing_requests, config.graceful_shutdown_timeout_s) == (100_000, 3600)
    assert config.max_constructor_retry_count == 1


@pytest.mark.parametrize(("engine", "options", "is_stopped"), [
    (None, {}, True), (ENGINE, {}, True), (replace(ENGINE, users=("a",)), {}, False),
    (replace(ENGINE, users=("a",)), {"force": True}, True),
    (replace(ENGINE, users=("a",)), {"force": True, "only_failed": True}, False),
    (replace(ENGINE, status="DEPLOY_FAILED"), {"only_failed": True}, True),
    (FAILING, {"only_failed": True}, True),
])  # fmt: skip
def test_engine_in_use_is_stopped_by_force_only(
    engine: SharedEngine | None, options: dict[str, bool], is_stopped: bool
) -> None:
    apps = FakeApps(engine) if engine is not None else FakeApps()
    assert apps.stop_engine(ENGINE.name, **options) == is_stopped
    is_deleted = is_stopped and engine is not None
    assert apps.deleted == ([(ENGINE.name, options.get("force", False))] if is_deleted else [])


def test_engine_that_is_idle_longest_makes_room() -> None:
    def engine(name: str, **fields: Any) -> SharedEngine:
        return replace(ENGINE, name=name, **fields)

    idle = [engine("c", idle_s=30.0), engine("b", idle_s=50.0), engine("d", idle_s=40.0)]
    apps = FakeApps(engine("none", workers={}, idle_s=90.0), engine("used", users=("a",)), *idle)
    apps.stop_idle_engine(keep="b")
    apps.stop_idle_engine()
    apps.stop_idle_engine()
    apps.stop_idle_engine()
    assert [name for name, _ in apps.deleted] == ["d", "b", "c"]

    class StuckApps(FakeApps):
        def _delete(self, name: str, *, force: bool = False) -> None:
            if name == "b":
                raise SliceError("it does not stop", kind="engine")
            super()._delete(name, force=force)

    apps = StuckApps(*idle)
    apps.stop_idle_engine()
    assert apps.deleted == [("d", False)]

    class LateUserApps(FakeApps):
        """Somebody begins to use the engine after it was chosen."""

        @contextlib.contextmanager
        def _lock(self) -> Iterator[None]:
            self.present = [replace(e, users=("a",)) if e.name == "b" else e for e in self.present]
            with super()._lock():
                yield

    apps = LateUserApps(*idle)
    apps.stop_idle_engine()
    assert apps.deleted == [("d", False)]

    class UnreachableApps(FakeApps):
        def engines(self) -> list[SharedEngine]:
            raise RayActorError

    UnreachableApps().stop_idle_engine()  # raises nothing


def test_unused_engines_are_removed_when_another_starts(deployed: list[Any]) -> None:
    unused = replace(ENGINE, name="unused", workers={})
    apps = FakeApps(unused, replace(unused, name="claimed", users=("a",)), replace(ENGINE, name="idle"))
    ensure(apps, SCALING)
    assert apps.deleted == [("unused", False)]
    assert [target.name for target in deployed] == [ENGINE.name]


def test_application_of_a_user_that_has_the_name_is_not_replaced(
    deployed: list[Any], keys: dict[str, bytes]
) -> None:
    apps = FakeApps()
    apps.of_others = (ENGINE.name,)
    with pytest.raises(SliceError, match="that no slice has started"):
        ensure(apps, SCALING)
    assert (deployed, apps.deleted, keys) == ([], [], {})


def test_engines_are_listed_with_their_workers_and_users(
    deployed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that is named as they are, or that took the name of one that is gone."""
    prefixes: list[str] = []
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    a, b, taken = (Identity(model, {"model": model}, "f") for model in ("a", "b", "taken"))

    def named(prefix: str) -> list[str]:
        prefixes.append(prefix)
        return [f"{a.name} 1f s3://out/ds=b c", f"{a.name}1 2f other", "ray-llm-gone 3f x"]

    def app(status: str, *overviews: Any, message: str = "") -> Any:
        return SimpleNamespace(
            status=SimpleNamespace(value=status), message=message, deployments=dict(overviews)
        )

    slow = SimpleNamespace(
        replica_states={State.RUNNING: 2, "STARTING": 1, "STOPPING": 0},
        message="slow",
        status_trigger=State.RUNNING,
    )
    for identity in (a, b, taken):
        FakeApps().ensure_running(identity, SCALING, Worker, (), bundles=BUNDLES, num_cpus=1, memory=4e9)
    own = deployed[0].target._bound_deployment.name
    apps = {
        "another's": app("RUNNING"),
        "ray-llm-team-summaries": app("RUNNING", (SCALING.name, slow)),
        taken.name: app("RUNNING", (f"{SCALING.name}-0", slow)),
        a.name: app("DEPLOYING", (own, slow), message="on its way:"),
        b.name: app("DELETING"),
    }
    monkeypatch.setattr(marks, "marks", named)
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications=apps))
    monkeypatch.setattr(serve_apps, "_is_serve_running", lambda: True)
    workers = {"RUNNING": 2, "STARTING": 1}
    assert serve_apps.SERVE.engines() == [
        SharedEngine(
            a.name,
            "DEPLOYING",
            "on its way: slow",
            SCALING.name,
            workers,
            ("s3://out/ds=b c",),
            "RUNNING",
            a,
            worker={"GPU": 2, "memory": 4e9},
        ),
        SharedEngine(b.name, "DELETING", "", "", {}, (), identity=b, worker={"GPU": 2, "memory": 4e9}),
    ]
    assert len(prefixes) == 1
    monkeypatch.setattr(marks, "marks", lambda prefix: [])
    assert [e.holds for e in serve_apps.SERVE.engines()] == [{"GPU": 6, "memory": 12e9}, {}]
    monkeypatch.setattr("time.time", lambda: now + 90)
    assert [e.idle_s for e in serve_apps.SERVE.engines()] == [90, 90]
    monkeypatch.setattr(serve_apps, "_is_serve_running", lambda: False)
    assert serve_apps.SERVE.engines() == []


@pytest.mark.parametrize(
    ("workers", "actors", "has_workers"),
    [
        ({}, [], False),
        ({"RUNNING": 1}, [], True),
        ({"STARTING": 1}, [(f"SERVE_REPLICA::{ENGINE.name}#d#1", "PENDING_CREATION", None)], False),
        ({"STARTING": 1}, [(f"SERVE_REPLICA::{ENGINE.name}#d#1", "PENDING_CREATION", 17)], True),
        ({"STARTING": 1}, [(f"SERVE_REPLICA::{ENGINE.name}#d#1", "DEAD", 17)], False),
        ({"STARTING": 1}, [(f"SERVE_REPLICA::{ENGINE.name}1#d#1", "ALIVE", 17)], False),
        ({"STARTING": 1}, None, True),  # without a dashboard
    ],
)
def test_worker_that_waits_for_resources_does_not_count(
    monkeypatch: pytest.MonkeyPatch, workers: dict[str, int], actors: list[Any] | None, has_workers: bool
) -> None:
    def list_actors(**options: Any) -> list[Any]:
        if actors is None:
            raise ConnectionError
        return [SimpleNamespace(name=name, state=state, pid=pid) for name, state, pid in actors]

    monkeypatch.setattr("ray.util.state.list_actors", list_actors)
    assert serve_apps.SERVE.has_workers(replace(ENGINE, workers=workers)) == has_workers


def test_controller_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    resumed = threading.Event()
    monkeypatch.setattr(serve_apps, "_CONTROLLER_SECONDS", 0.02)
    monkeypatch.setattr(serve_apps, "_is_serve_running", lambda: True)
    monkeypatch.setattr(marks, "marks", lambda prefix: [])
    monkeypatch.setattr("ray.serve.status", resumed.wait)
    monkeypatch.setattr("ray.serve.get_app_handle", lambda name: resumed.wait())
    monkeypatch.setattr("ray.serve.delete", lambda name, _blocking: resumed.wait())
    for ask in (serve_apps.SERVE.engines, partial(serve_apps.SERVE.handle, "a"),
                partial(serve_apps.SERVE._delete, "a")):  # fmt: skip
        with pytest.raises(SliceError, match=r"controller did not answer within 0\.02 s") as e:
            ask()
        assert e.value.kind == "engine"
    resumed.set()


def test_engine_that_does_not_stop_is_an_error_and_force_kills_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Apps(ServeApps):
        present: tuple[SharedEngine, ...] = ()

        def engines(self) -> list[SharedEngine]:
            return list(self.present)

    ours, others = (f"SERVE_REPLICA::{ENGINE.name}{n}#d#1" for n in ("", "1"))
    names = [("serve", ours), ("serve", others), ("mine", ours)]
    actors = [{"namespace": namespace, "name": name} for namespace, name in names]
    deleted: list[str] = []
    killed: list[tuple[str, str]] = []
    monkeypatch.setattr("ray.serve.delete", lambda name, _blocking: deleted.append(name))
    monkeypatch.setattr("ray.util.list_named_actors", lambda all_namespaces: actors)
    monkeypatch.setattr("ray.get_actor", lambda name, namespace: (namespace, name))
    monkeypatch.setattr("ray.kill", killed.append)
    monkeypatch.setattr(serve_apps, "_DELETE_SECONDS", -1)
    apps = Apps()
    apps._delete(ENGINE.name)
    assert killed == []
    apps.present = (ENGINE,)
    with pytest.raises(SliceError, match="did not stop"):
        apps._delete(ENGINE.name, force=True)
    assert killed == [("serve", ours)]
    assert deleted == [ENGINE.name] * 2


def test_serve_starts_without_the_jobs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[dict[str, Any]] = []
    done = SimpleNamespace(returncode=0, stderr="")

    def run(command: list[str], **how: Any) -> Any:
        runs.append(how["env"])
        return done

    monkeypatch.setenv("SECRET", "of the job")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv("HOME", "/of/the/node")
    monkeypatch.setenv("VLLM_X", "of the job")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:secret@db/x")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the cluster")
    context = SimpleNamespace(runtime_env={"env_vars": {"VLLM_X": "of the job"}}, gcs_address="head:6379")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr(serve_apps, "_is_serve_running", lambda: False)
    monkeypatch.setattr("subprocess.run", run)
    serve_apps.SERVE._start_serve()
    [environment] = runs
    assert (environment["HOME"], environment["RAY_ADDRESS"]) == ("/of/the/node", "head:6379")
    assert environment["RAY_AUTH_TOKEN"] == "of the cluster"
    assert not environment.keys() & {"SECRET", "VLLM_X", "DATABASE_URL", "RAY_JOB_CONFIG_JSON_ENV_VAR"}
    done.returncode, done.stderr = 1, "no ray[serve]"
    with pytest.raises(SliceError, match=r"Ray Serve could not be started: no ray\[serve\]"):
        serve_apps.SERVE._start_serve()
    monkeypatch.setattr(serve_apps, "_is_serve_running", lambda: True)
    serve_apps.SERVE._start_serve()
    assert len(runs) == 2


def test_restarting_controller_is_asked_again_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve.exceptions import RayServeException

    results: list[Any] = []
    now = 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 20

    def ask(*arguments: str) -> Any:
        if isinstance(result := results.pop(0), Exception):
            raise result
        return (result, *arguments)

    monkeypatch.setattr("ray.serve.status", ask)
    monkeypatch.setattr("ray.serve.get_app_handle", ask)
    monkeypatch.setattr(serve_apps, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    results += [RayActorError(), RayActorError(), "status"]
    assert serve_apps.SERVE._status() == ("status",)
    results += [RayActorError(), RayServeException("Application 'e' does not exist."), "handle"]
    assert serve_apps.SERVE.handle("e") == ("handle", "e")
    results += [RayActorError()] * 3
    with pytest.raises(RayActorError):
        serve_apps.SERVE._status()
    assert results == []


def test_engines_scale_to_zero_unless_they_are_kept() -> None:
    scaling = Scaling((2, 4), 32, 90)
    assert scaling.name == "workers-2-to-4-idle-90-s"
    assert {k: v for k, v in scaling.options().items() if k.endswith("replicas")} == {
        "min_replicas": 0, "initial_replicas": 2, "max_replicas": 4,
    }  # fmt: skip
    assert (scaling.options()["target_ongoing_requests"], scaling.options()["downscale_delay_s"]) == (32, 90)
    kept = Scaling((2, 4), 32, None)
    assert (kept.name, kept.options()["min_replicas"]) == ("workers-2-to-4-idle-kept", 2)
