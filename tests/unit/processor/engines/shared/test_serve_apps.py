"""The shared engines of a cluster as this provider keeps them: listed, started and ended, by what Serve says
and whom it sees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import Scaling, SharedEngine
from airflow_provider_raydatallm.processor.ray_runtime import named_actors

#: Ray's own, while it imports.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")

SCALING = Scaling((1, 2), 32, 600)
OTHER = Scaling((1, 1), 32, 600)
ENGINE = SharedEngine("ray-llm-m-0", "RUNNING", "", SCALING.name, {"RUNNING": 1}, ())
FAILING = replace(ENGINE, status="UNHEALTHY", trigger="REPLICA_STARTUP_FAILED", workers={"STARTING": 1})


class State(Enum):
    """As Serve has it, in some versions."""

    RUNNING = "RUNNING"


class Cluster:
    """Of a cluster, the engines that are there; whoever starts or ends one must be alone."""

    def __init__(self) -> None:
        self.there: list[SharedEngine] = []
        self.deleted: list[tuple[str, bool]] = []
        self.deployed: list[Any] = []
        self.is_locked = False

    @contextlib.contextmanager
    def cluster_lock(self, name: str) -> Iterator[None]:
        self.is_locked = True
        yield
        self.is_locked = False

    def delete(self, name: str, *, at_once: bool = False) -> None:
        assert self.is_locked
        self.deleted.append((name, at_once))
        self.there = [e for e in self.there if e.name != name]

    def deploy(self, targets: list[Any], **options: Any) -> None:
        assert self.is_locked
        assert options == {"wait_for_applications_running": False}
        self.deployed += targets


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(serve_apps, "shared_engines", lambda: made.there)
    monkeypatch.setattr(serve_apps, "cluster_lock", made.cluster_lock)
    monkeypatch.setattr(serve_apps, "_delete", made.delete)
    monkeypatch.setattr(serve_apps, "_start_serve", lambda: None)
    monkeypatch.setattr("ray.serve.api.run_many", made.deploy)
    return made


class Worker:
    def __init__(self, app: str, arguments: dict[str, Any]) -> None:
        pass


def ensure(scaling: Scaling) -> None:
    serve_apps.ensure_running("ray-llm-m-0", scaling, Worker, ({"model": "m"},), num_cpus=1, runtime_env={})


@pytest.mark.parametrize(
    ("there", "scaling", "is_deployed"),
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
def test_engine_is_started_anew_unless_it_is_as_asked_for_or_others_use_it(
    cluster: Cluster, there: SharedEngine | None, scaling: Scaling, is_deployed: bool
) -> None:
    cluster.there = [there] if there is not None else []
    ensure(scaling)
    assert bool(cluster.deployed) == is_deployed
    deleted = [("ray-llm-m-0", there.fails_to_start)] if there is not None and is_deployed else []
    assert cluster.deleted == deleted


def test_engine_is_deployed_as_serve_takes_it(cluster: Cluster) -> None:
    ensure(SCALING)
    [target] = cluster.deployed
    assert (target.name, target.route_prefix) == ("ray-llm-m-0", None)  # no way in from outside
    deployment = target.target._bound_deployment
    assert deployment.name == SCALING.name
    assert deployment.init_args == ("ray-llm-m-0", {"model": "m"})
    assert deployment.ray_actor_options == {"num_cpus": 1, "runtime_env": {}}
    config = deployment._deployment_config
    assert config.autoscaling_config.initial_replicas == 1
    # Batches wait in the worker, and one that is too many finishes what it has.
    assert (config.max_ongoing_requests, config.graceful_shutdown_timeout_s) == (100_000, 3600)
    assert config.max_constructor_retry_count == 1


@pytest.mark.parametrize(
    ("there", "how", "is_ended"),
    [
        (None, {}, True),
        (ENGINE, {}, True),
        (replace(ENGINE, users=("a",)), {}, False),
        (replace(ENGINE, users=("a",)), {"force": True}, True),
        (replace(ENGINE, users=("a",)), {"force": True, "only_failed": True}, False),
        (replace(ENGINE, status="DEPLOY_FAILED"), {"only_failed": True}, True),
        (FAILING, {"only_failed": True}, True),
    ],
)
def test_engine_in_use_is_ended_by_force_only(
    cluster: Cluster, there: SharedEngine | None, how: dict[str, bool], is_ended: bool
) -> None:
    cluster.there = [there] if there is not None else []
    assert serve_apps.stop_engine("ray-llm-m-0", **how) == is_ended
    is_deleted = is_ended and there is not None
    assert cluster.deleted == ([("ray-llm-m-0", how.get("force", False))] if is_deleted else [])


def test_room_is_made_by_one_idle_engine(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(name: str, **given: Any) -> SharedEngine:
        return replace(ENGINE, name=name, **given)

    idle = [engine("b"), engine("c")]
    cluster.there = [engine("none", workers={}), engine("used", users=("a",)), *idle]
    serve_apps.stop_idle_engine(keep="b")  # what it is asked for would be started anew
    serve_apps.stop_idle_engine()
    assert cluster.deleted == [("c", False), ("b", False)]

    def stuck(name: str, *, at_once: bool = False) -> None:
        if name == "b":
            raise SliceError("it does not end", kind="engine")
        cluster.deleted.append((name, at_once))

    monkeypatch.setattr(serve_apps, "_delete", stuck)
    cluster.there = idle
    serve_apps.stop_idle_engine()  # one that does not end keeps no other
    assert cluster.deleted[2:] == [("c", False)]

    def unknown() -> list[SharedEngine]:
        raise RayActorError

    monkeypatch.setattr(serve_apps, "shared_engines", unknown)
    serve_apps.stop_idle_engine()  # whoever waits for room waits on


def test_engine_that_scaled_to_none_is_forgotten_when_another_starts(cluster: Cluster) -> None:
    unused = replace(ENGINE, name="unused", workers={})
    cluster.there = [unused, replace(unused, name="claimed", users=("a",)), replace(ENGINE, name="idle")]
    ensure(SCALING)
    assert cluster.deleted == [("unused", False)]
    assert [target.name for target in cluster.deployed] == ["ray-llm-m-0"]


def test_engines_are_listed_with_their_workers_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def claimed(prefix: str) -> list[str]:
        asked.append(prefix)
        return ["ray-llm-a-0 1f s3://out/ds=b c", "ray-llm-a-01 2f other", "ray-llm-gone 3f x"]

    def app(status: str, *overviews: Any, message: str = "") -> Any:
        deployments = {f"d{i}": overview for i, overview in enumerate(overviews)}
        return SimpleNamespace(status=SimpleNamespace(value=status), message=message, deployments=deployments)

    apps = {
        "another's": app("RUNNING"),
        "ray-llm-a-0": app(
            "DEPLOYING",
            SimpleNamespace(
                replica_states={State.RUNNING: 2, "STARTING": 1, "STOPPING": 0},
                message="slow",
                status_trigger=State.RUNNING,
            ),
            message="on its way:",
        ),
        "ray-llm-b-0": app("DELETING"),
    }
    monkeypatch.setattr(serve_apps, "named_actors", claimed)
    monkeypatch.setattr(serve_apps, "_status", lambda: SimpleNamespace(applications=apps))
    monkeypatch.setattr(serve_apps, "_serve_runs", lambda: True)
    workers = {"RUNNING": 2, "STARTING": 1}
    assert serve_apps.shared_engines() == [
        SharedEngine(
            "ray-llm-a-0", "DEPLOYING", "on its way: slow", "d0", workers, ("s3://out/ds=b c",), "RUNNING"
        ),
        SharedEngine("ray-llm-b-0", "DELETING", "", "", {}, ()),
    ]
    assert len(asked) == 1
    monkeypatch.setattr(serve_apps, "_serve_runs", lambda: False)
    assert serve_apps.shared_engines() == []


@pytest.mark.parametrize(
    ("workers", "actors", "has"),
    [
        ({}, [], False),
        ({"RUNNING": 1}, [], True),
        ({"STARTING": 1}, [("SERVE_REPLICA::ray-llm-m-0#d#1", "PENDING_CREATION", None)], False),
        ({"STARTING": 1}, [("SERVE_REPLICA::ray-llm-m-0#d#1", "PENDING_CREATION", 17)], True),
        ({"STARTING": 1}, [("SERVE_REPLICA::ray-llm-m-0#d#1", "DEAD", 17)], False),
        ({"STARTING": 1}, [("SERVE_REPLICA::ray-llm-m-01#d#1", "ALIVE", 17)], False),
        ({"STARTING": 1}, None, True),  # it cannot be told
    ],
)
def test_worker_that_waits_for_its_place_counts_as_none(
    monkeypatch: pytest.MonkeyPatch, workers: dict[str, int], actors: list[Any] | None, has: bool
) -> None:
    def list_actors(**asked: Any) -> list[Any]:
        if actors is None:
            raise ConnectionError
        return [SimpleNamespace(name=name, state=state, pid=pid) for name, state, pid in actors]

    monkeypatch.setattr("ray.util.state.list_actors", list_actors)
    assert serve_apps.has_workers(replace(ENGINE, workers=workers)) == has


def test_only_names_of_this_provider_count(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [(named_actors.NAMESPACE, "user b 2"), ("serve", "user c"), (named_actors.NAMESPACE, "user a 1")]
    found = [
        {"namespace": namespace, "name": name}
        for namespace, name in [*names, (named_actors.NAMESPACE, "turn")]
    ]
    monkeypatch.setattr("ray.util.list_named_actors", lambda all_namespaces: found)
    assert named_actors.named_actors("user ") == ["a 1", "b 2"]
    assert serve_apps.users("a") == ["1"]


def test_who_comes_second_waits_for_the_first_and_a_failure_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims: list[Any] = [None, None, "lock", "lock"]
    killed: list[Any] = []
    monkeypatch.setattr(named_actors, "create_named_actor", lambda name: claims.pop(0))
    monkeypatch.setattr(named_actors, "_LOOK_SECONDS", 0)
    monkeypatch.setattr("ray.kill", killed.append)
    with named_actors.cluster_lock("x"):
        assert (claims, killed) == (["lock"], [])
    with pytest.raises(ValueError, match="broken"), named_actors.cluster_lock("x"):
        raise ValueError("broken")
    assert killed == ["lock", "lock"]


def test_engine_that_does_not_end_is_told_and_force_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, others = (f"SERVE_REPLICA::ray-llm-m-{n}#d#1" for n in ("0", "01"))
    names = [("serve", ours), ("serve", others), ("mine", ours)]
    found = [{"namespace": namespace, "name": name} for namespace, name in names]
    deleted: list[str] = []
    killed: list[tuple[str, str]] = []
    monkeypatch.setattr("ray.serve.delete", lambda name, _blocking: deleted.append(name))
    monkeypatch.setattr("ray.util.list_named_actors", lambda all_namespaces: found)
    monkeypatch.setattr("ray.get_actor", lambda name, namespace: (namespace, name))
    monkeypatch.setattr("ray.kill", killed.append)
    monkeypatch.setattr(serve_apps, "_DELETE_SECONDS", -1)
    monkeypatch.setattr(serve_apps, "shared_engines", list)
    serve_apps._delete(ENGINE.name)
    assert killed == []
    monkeypatch.setattr(serve_apps, "shared_engines", lambda: [ENGINE])
    with pytest.raises(SliceError, match="does not end"):
        serve_apps._delete(ENGINE.name, at_once=True)
    assert killed == [("serve", ours)]
    assert deleted == [ENGINE.name] * 2


def test_serve_is_started_without_what_is_the_jobs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[dict[str, Any]] = []
    done = SimpleNamespace(returncode=0, stderr="")

    def run(command: list[str], **how: Any) -> Any:
        runs.append(how["env"])
        return done

    monkeypatch.setenv("SECRET", "of the job")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv("HOME", "/of/the/node")
    context = SimpleNamespace(runtime_env={"env_vars": {"SECRET": "of the job"}}, gcs_address="head:6379")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr(serve_apps, "_serve_runs", lambda: False)
    monkeypatch.setattr("subprocess.run", run)
    serve_apps._start_serve()
    [environment] = runs
    assert (environment["HOME"], environment["RAY_ADDRESS"]) == ("/of/the/node", "head:6379")
    assert not environment.keys() & {"SECRET", "RAY_JOB_CONFIG_JSON_ENV_VAR"}
    done.returncode, done.stderr = 1, "no ray[serve]"
    with pytest.raises(SliceError, match=r"Ray Serve could not be started: no ray\[serve\]"):
        serve_apps._start_serve()
    monkeypatch.setattr(serve_apps, "_serve_runs", lambda: True)
    serve_apps._start_serve()
    assert len(runs) == 2


def test_serve_that_is_started_anew_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [RayActorError(), RayActorError(), "there"]
    now = 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 20

    def status() -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr("ray.serve.status", status)
    monkeypatch.setattr(serve_apps, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    assert serve_apps._status() == "there"
    answers = [RayActorError()] * 3
    with pytest.raises(RayActorError):
        serve_apps._status()
    assert answers == []
