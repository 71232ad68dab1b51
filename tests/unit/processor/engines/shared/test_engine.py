"""The driver's side of a shared engine: what it waits for, starts and reports, by what it sees."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from ray.exceptions import RayActorError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import WorkerDiedError
from airflow_provider_raydatallm.processor.engines.shared import engine as engine_module
from airflow_provider_raydatallm.processor.engines.shared import identity as identity_module
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.engine import SharedVllmEngine, SharedWorkerPool
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SharedEngine
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, Resources, SizingInputs
from tests.support.fake_serve import ENGINE, GPU, IDENTITY, NAME, OTHER_SCALING, SCALING, STARTING, FakeServe
from tests.support.in_process import job_of
from tests.support.llama import LLAMA_8B


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    fake = FakeServe()
    monkeypatch.setattr(serve_apps, "SERVE", fake)
    return fake


Make = Callable[..., SharedVllmEngine]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Builds an engine of 2 to 4 workers on GPUs."""
    monkeypatch.setattr(
        "airflow_provider_raydatallm.processor.engines.vllm.engine_base.vllm_is_cpu_build", lambda kind: False
    )

    def engine(rows: int = 10_000, **options: Any) -> SharedVllmEngine:
        defaults: dict[str, Any] = {
            "input_path": "in", "output_path": "out", "engine": "vllm", "engine__scope": "shared",
            "model_source": "m", "engine__workers": (2, 4), "engine__batch_size": 32,
            "engine__max_concurrent_batches": 32,
        }  # fmt: skip
        engine = SharedVllmEngine(job_of(**defaults | options), rows)
        engine.__dict__["_own_identity"] = IDENTITY
        return engine

    return engine


@pytest.mark.parametrize(
    "there",
    [
        None,
        replace(ENGINE, workers={}),  # scaled to zero
        replace(ENGINE, status="DELETING"),
        replace(ENGINE, status="DEPLOY_FAILED"),
        replace(ENGINE, status="NOT_STARTED"),
        OTHER_SCALING,  # without users: it is restarted
        replace(ENGINE, trigger="REPLICA_STARTUP_FAILED", workers={"STARTING": 1}),  # this too
    ],
)
def test_slice_needs_all_resources_without_a_running_engine(
    serve: FakeServe, make: Make, there: SharedEngine | None
) -> None:
    engine = make(**GPU)
    serve.present = [e for e in (there, replace(ENGINE, name="ray-llm-another-0")) if e is not None]
    serve.loads = False
    assert engine.resources_needed_now == engine.resources
    assert (engine.resources.cpus, engine.resources.gpus) == (8, 4)  # 2 workers, 4 feeders, 2 beside


@pytest.mark.parametrize(
    "there",
    [
        ENGINE,
        STARTING,
        replace(OTHER_SCALING, users=("another",)),  # who keep it from being restarted
    ],
)
def test_slice_does_not_need_the_workers_of_a_running_engine(
    serve: FakeServe, make: Make, there: SharedEngine
) -> None:
    serve.present = [there]
    needed = make(**GPU).resources_needed_now
    assert needed == Resources(6, 0, needed.breakdown)
    assert (serve.used, serve.ensured) == ([], [])  # a queued slice does not keep it


def limited(limit: int | None, **fields: Any) -> SharedEngine:
    """An engine that differs in `max_model_len` only."""
    arguments = {"model": "m"} if limit is None else {"model": "m", "max_model_len": limit}
    identity = replace(IDENTITY, arguments=arguments)
    return replace(ENGINE, name=identity.name, identity=identity, **fields)


@pytest.mark.parametrize(("there", "used"), [
    ([limited(256), limited(None), limited(128)], 128),  # the smallest one that is large enough
    ([limited(128), limited(64)], 64),
    ([limited(128, workers={}), limited(None)], None),
    ([limited(32), limited(128, scaling="workers-1-to-1-idle-600-s")], 64),  # none: it starts its own
    ([limited(32), limited(128, scaling="workers-1-to-1-idle-600-s", users=("another",))], 128),
])  # fmt: skip
def test_slice_uses_a_running_engine_with_a_larger_limit(
    serve: FakeServe, started: Make, there: list[SharedEngine], used: int | None
) -> None:
    engine = started()
    engine.stop()
    engine.__dict__["_takes_larger_limits"] = True
    engine.__dict__["_own_identity"] = own = replace(IDENTITY, arguments={"model": "m", "max_model_len": 64})
    serve.present = there
    is_running = any(e.identity is not None and e.identity.limit == used for e in there)
    assert (engine.resources_needed_now != engine.resources) == is_running
    assert engine.engine_to_keep == (engine.name if is_running else None)
    serve.present = []  # it ends at this moment: the same one starts again
    engine.on_admitted()
    open_pool = engine._start()
    identity, _, _, [arguments] = serve.ensured[-1]
    assert (identity.limit, arguments.get("max_model_len")) == (used, used)
    assert serve.used[-1] == engine.name == identity.name
    assert open_pool.args[2] == (None if used == 64 else 64)  # its rows' own limit  # type: ignore[attr-defined]
    engine.stop()
    assert engine.name == own.name


@pytest.mark.parametrize(("task", "config", "takes"), [
    ({}, LLAMA_8B, True), ({}, {**LLAMA_8B, "rope_scaling": {"rope_type": "longrope"}}, False),
    ({"images": "photo"}, LLAMA_8B, False), ({}, None, False),
])  # fmt: skip
def test_slice_needs_an_equal_limit_where_answers_may_depend_on_it(
    serve: FakeServe, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    task: dict[str, Any], config: dict[str, Any] | None, takes: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "airflow_provider_raydatallm.processor.engines.vllm.engine_base.check_image_model", lambda job: None
    )
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    engine = make(model_source=str(tmp_path), **task)
    engine.__dict__["_own_identity"] = replace(IDENTITY, arguments={"model": "m", "max_model_len": 64})
    serve.present = [limited(128)]
    assert (engine.engine_to_keep is not None) == takes


def test_engine_that_waits_for_resources_is_not_running(serve: FakeServe, make: Make) -> None:
    engine = make()
    serve.present, serve.loads = [replace(ENGINE, workers={"STARTING": 1})], False
    assert engine.resources_needed_now == engine.resources
    assert not engine.is_starting()
    serve.loads = True
    assert engine.is_starting()
    serve.present = []
    assert not engine.is_starting()


def test_engines_block_another_at_max_shared_engines(serve: FakeServe, make: Make) -> None:
    first, second = (replace(ENGINE, name=f"ray-llm-{n}-0") for n in ("a", "b"))
    serve.present = [first, replace(second, workers={}), ENGINE]
    assert make().blocking_engines() == []
    serve.present = [first, replace(second, workers={})]
    assert make(engine__max_shared=2).blocking_engines() == []  # one without workers does not count
    assert make(engine__max_shared=1).blocking_engines() == ["shared engine ray-llm-a-0"]
    serve.present = [replace(first, workers={}, users=("1 slice",))]  # it is to get a worker
    assert make(engine__max_shared=1).blocking_engines() == ["shared engine ray-llm-a-0"]
    serve.present = [first, second, ENGINE]
    assert make(engine__max_shared=1).blocking_engines() == []  # it is running itself
    serve.present = [first, second, replace(ENGINE, workers={})]
    assert make(engine__max_shared=1).blocking_engines() == [
        f"shared engine ray-llm-{n}-0" for n in ("a", "b")
    ]


@pytest.fixture
def started(serve: FakeServe, make: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SharedVllmEngine]:
    monkeypatch.setattr(
        "ray.get_runtime_context",
        lambda: SimpleNamespace(
            runtime_env={
                "py_modules": ["gcs://mine.zip"], "pip": ["einops"], "_ray_commit": "0",
                "env_vars": {
                    "AWS_SECRET_ACCESS_KEY": "s", "RAY_X": "x", "HF_HOME": "/models", "HF_TOKEN": "hub",
                    "OTHER_API_KEY": "o",
                },
            }
        ),
    )  # fmt: skip

    def start(**options: Any) -> SharedVllmEngine:
        engine = make(**options)
        engine.on_admitted()
        engine._start()
        return engine

    return start


def test_engine_starts_with_its_workers_resources_and_no_job_environment(
    serve: FakeServe, started: Make
) -> None:
    engine = started(**GPU)
    assert serve.used == [NAME]
    [(identity, scaling, worker, arguments)] = serve.ensured
    assert (identity, scaling, worker.__name__) == (IDENTITY, SCALING, "SharedVllmReplica")
    assert arguments[0]["model"] == "m"
    assert serve.options == {
        "bundles": [], "num_cpus": 1, "num_gpus": 2, "accelerator_type": "L4",
        "runtime_env": {"pip": ["einops"], "env_vars": {"HF_HOME": "/models"}},
    }  # fmt: skip
    assert engine.shared_actor_prefix == f"SERVE_REPLICA::{NAME}#"
    assert serve.model_token == "hub"  # lent for as long as this slice uses the engine


def test_engine_on_cpus_holds_no_gpu(
    serve: FakeServe, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(
        "airflow_provider_raydatallm.processor.engines.vllm.engine_base.vllm_is_cpu_build", lambda kind: True
    )
    started()
    assert serve.options.keys() == {"bundles", "num_cpus", "runtime_env"}
    assert serve.options["runtime_env"]["env_vars"]["VLLM_CPU_KVCACHE_SPACE"] == "2"


@pytest.mark.parametrize(("node", "cluster", "workers", "each"), [
    (64e9, 64e9, 1, 3_647_483_648), (64e9, 64e9, 2, 3_647_483_648), (3e9, 9e9, 1, 3_000_000_000),
    (6e9, 6e9, 2, 3_000_000_000), (0, 0, 1, 0),  # of a node that Ray counts no memory for
])  # fmt: skip
def test_engine_on_cpus_reserves_memory_but_one_alone_has_room(
    serve: FakeServe, started: Make, monkeypatch: pytest.MonkeyPatch,
    node: float, cluster: float, workers: int, each: int,
) -> None:  # fmt: skip
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(
        "airflow_provider_raydatallm.processor.engines.vllm.engine_base.vllm_is_cpu_build", lambda kind: True
    )
    engine = started(engine__workers=workers)
    facts = ClusterFacts({"CPU": 64, "memory": cluster}, {}, node_memory=node)
    engine.choose_sizes(SizingInputs(facts))
    assert engine.resources.memory == ((each,) * workers if each else ())
    engine._start()
    assert serve.options.get("memory", 0) == each
    serve.present = [replace(ENGINE, scaling=engine._scaling.name)]
    assert engine.resources_needed_now.memory == ()


def test_engine_scales_to_all_gpus_and_compiles_for_any_slice(make: Make) -> None:
    engine = make(rows=100, engine__workers="auto")
    engine.choose_sizes(SizingInputs(ClusterFacts({"CPU": 64, "GPU": 8}, {}, 8, 80_000_000_000)))
    assert engine.workers == (1, 8)
    assert "enforce_eager" not in engine.engine_kwargs
    assert not engine.needs_past_throughput


@pytest.mark.parametrize(
    "other", [{"model_source": "n"}, {"engine__kwargs": {"max_model_len": 64}}, {"engine__accelerator": "L4"}]
)
def test_only_equal_engines_share_a_name(started: Make, other: dict[str, Any]) -> None:
    def name(**options: Any) -> str:
        engine = started(**options)
        del engine.__dict__["_own_identity"]
        return engine.name

    other_work = {
        "prompt": "else",
        "slice_key": "b",
        "sampling_params": {"max_tokens": 3},
        "engine__workers": 1,
    }
    assert name() == name(**other_work)
    assert name() != name(**other)


def test_environment_changes_the_name_except_for_the_jobs_own_part(
    started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    variables = {"AWS_A": "1", "HF_TOKEN": "of today", "PYTHONPYCACHEPREFIX": "/kept/by/this/job"}
    own = {"env_vars": variables, "py_modules": ["gcs://b.zip"]}
    for env in ({}, own, {"env_vars": {"A": "1"}}):
        monkeypatch.setattr("ray.get_runtime_context", lambda env=env: SimpleNamespace(runtime_env=env))
        engine = started()
        del engine.__dict__["_own_identity"]
        names.append(engine.name)
    assert names[0] == names[1] != names[2]


def test_changed_model_files_change_the_name(started: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for age in (1, 1, 2):
        monkeypatch.setattr(engine_module, "model_files", lambda source, age=age: [[("config.json", 2, age)]])
        engine = started()
        del engine.__dict__["_own_identity"]
        names.append(engine.name)
    assert names[0] == names[1] != names[2]


def test_other_code_of_the_provider_changes_the_name(
    started: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where nodes have it installed, and it is upgraded under a running engine."""
    names = []
    for version in ("old", "same/old", "new"):
        folder = tmp_path / version
        folder.mkdir(parents=True)
        (folder / "replica.py").write_text(f"{folder.name} = 1")
        monkeypatch.setattr(identity_module, "_INSTALLED", folder)
        engine = started()
        del engine.__dict__["_own_identity"]
        names.append(engine.name)
    assert names[0] == names[1] != names[2]


def test_calls_are_streams_of_their_own_and_end_with_their_worker() -> None:
    calls: list[Any] = []

    class Handle:
        def remote(self, rows: pa.Table, *call: Any) -> Iterator[pa.Table]:
            calls.append(call)
            yield rows
            raise RayActorError

    workers: Any = SharedWorkerPool.__new__(SharedWorkerPool)
    workers.__dict__ |= {
        "_generate": Handle(),
        "_user": "0 s3://out",
        "_limit": 64,
        "_feeder": "3",
        "_calls": count(),
    }
    rows = pa.table({"tokens": [[1]]})
    [worker] = workers.ready()
    for _ in range(2):
        groups = worker.generate(rows)
        assert next(groups) is rows
        with pytest.raises(WorkerDiedError):
            next(groups)
    assert calls == [(f"0 s3://out 3 {call}", "0 s3://out", 64) for call in (0, 1)]


def test_engine_is_ready_when_a_worker_runs(serve: FakeServe, started: Make) -> None:
    engine = started()
    serve.present = [STARTING]
    engine.raise_if_broken()
    assert not engine.is_ready
    serve.present = [ENGINE]
    engine.raise_if_broken()
    assert engine.is_ready


def test_startup_seconds_are_read_once_and_only_after_waiting(serve: FakeServe, started: Make) -> None:
    serve.present = [ENGINE]
    engine = started()
    for _ in range(2):
        engine.raise_if_broken()
    assert (engine.startup_seconds, serve.asked) == ({}, [])  # it was running before

    serve.present = [STARTING]
    engine = started()
    engine.raise_if_broken()
    assert (engine.startup_seconds, serve.asked) == ({}, [])
    serve.present = [ENGINE]
    for _ in range(2):
        engine.raise_if_broken()
    assert (engine.startup_seconds, serve.asked) == ({"engine": 4.0}, [NAME])


def test_engine_that_cannot_start_is_stopped_and_reported(serve: FakeServe, started: Make) -> None:
    engine = started()
    serve.present = [replace(ENGINE, status="DEPLOY_FAILED", message="no weights", workers={})]
    with pytest.raises(RuntimeError, match="the shared engine could not be started: no weights"):
        engine.raise_if_broken()
    # One that was started meanwhile is left alone.
    assert serve.stopped == [(NAME, {"force": True, "only_failed": True})]


def failing(times: int) -> SharedEngine:
    return replace(
        ENGINE, status="UNHEALTHY", trigger="REPLICA_STARTUP_FAILED",
        message=f"failed to start {times} times in a row: no memory", workers={"STARTING": 1},
    )  # fmt: skip


def test_engine_that_cannot_restart_is_stopped_at_the_second_failure(serve: FakeServe, started: Make) -> None:
    engine = started()
    for seen in (failing(1), failing(1), ENGINE, failing(1), failing(1)):  # one start succeeded
        serve.present = [seen]
        engine.raise_if_broken()
    serve.present = [failing(2)]
    with pytest.raises(RuntimeError, match="could not be started: failed to start 2 times in a row: no mem"):
        engine.raise_if_broken()
    assert serve.stopped == [(NAME, {"force": True, "only_failed": True})]


def test_failure_before_this_slice_deploys_is_ignored(serve: FakeServe, make: Make) -> None:
    serve.present = [replace(ENGINE, status="DEPLOY_FAILED", message="of another", workers={})]
    make().raise_if_broken()
    assert serve.stopped == []


def test_scaling_does_not_depend_on_the_slices_rows(serve: FakeServe, started: Make) -> None:
    auto = {"engine__batch_size": None, "engine__max_concurrent_batches": None}
    by_rows = replace(SCALING, batches=16)  # calls of 128 rows
    assert started(rows=50, **auto)._scaling == started(rows=10_000_000, **auto)._scaling == by_rows


@pytest.mark.parametrize("there", [[], [replace(ENGINE, status="DELETING")]])
def test_engine_absent_for_three_polls_ends_the_slice(
    serve: FakeServe, started: Make, there: list[SharedEngine]
) -> None:
    engine = started()
    for seen in (there, there, [ENGINE], there, there):  # it came back once
        serve.present = seen
        engine.raise_if_broken()
    with pytest.raises(SliceError, match="was stopped while this slice used it") as caught:
        engine.raise_if_broken()
    assert caught.value.kind == "engine"


def test_slice_keeps_only_an_engine_that_it_can_use(serve: FakeServe, make: Make) -> None:
    kept: list[str | None] = []
    engine = make()
    for there in ([ENGINE], [OTHER_SCALING], []):
        serve.present = there
        kept.append(engine.engine_to_keep)
    assert kept == [NAME, None, None]


def test_engine_is_used_from_admission_on_and_each_round_starts_anew(
    serve: FakeServe, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.kill", lambda actor: None)
    monkeypatch.setattr("ray.wait", lambda *arguments, **options: ([], []))  # would start Ray
    engine = started()
    assert serve.used == [NAME]
    serve.present = [ENGINE]
    engine.raise_if_broken()
    assert engine.is_ready
    engine.stop()
    serve.present = []  # ended between two rounds
    engine.on_admitted()
    assert serve.used == [NAME, NAME]
    for _ in range(5):
        engine.raise_if_broken()
    assert not engine.is_ready
    assert not engine.is_starting()


def test_engine_is_not_missed_before_it_is_deployed(serve: FakeServe, make: Make) -> None:
    engine = make()
    for _ in range(5):
        engine.raise_if_broken()


def test_serve_that_is_unreachable_is_no_news_and_no_engine_that_starts(
    serve: FakeServe, started: Make
) -> None:
    engine = started()
    serve.present = [STARTING]
    engine.raise_if_broken()
    assert engine.is_starting()
    serve.is_reachable = False
    for _ in range(5):
        engine.raise_if_broken()
    assert not engine.is_starting()  # the stall watch would wait for ever


def test_serve_that_hangs_is_asked_once_and_delays_no_check(
    serve: FakeServe, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_NEWS_SECONDS", 0.02)
    monkeypatch.setattr(engine_module, "_LAST_NEWS_SECONDS", 0.02)
    engine = started()
    resumed, calls = threading.Event(), list[int]()

    def engines() -> list[SharedEngine]:
        calls.append(1)
        resumed.wait()
        return [ENGINE]

    monkeypatch.setattr(serve, "engines", engines)
    for _ in range(5):
        engine.raise_if_broken()
    assert (engine.is_ready, engine.is_starting(), len(calls)) == (False, False, 1)
    resumed.set()
    monkeypatch.setattr(engine_module, "_NEWS_SECONDS", 60)
    engine.raise_if_broken()
    assert engine.is_ready


def test_end_of_a_slice_does_not_stop_the_engine(
    serve: FakeServe, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr("ray.kill", killed.append)
    monkeypatch.setattr("ray.wait", lambda *arguments, **options: ([], []))
    engine = started()
    coordinator: Any = object()
    engine._dedup._coordinators = [coordinator]
    engine.stop()
    engine.stop()
    assert (killed, serve.left) == ([coordinator], [NAME])
    assert serve.stopped == []


def test_package_that_ray_brought_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity_module.package_of_this_code() is None
    path = "/tmp/ray/session/runtime_resources/py_modules_files/_ray_pkg_0a/airflow_provider_raydatallm/x.py"
    monkeypatch.setattr(identity_module, "__file__", path)
    assert identity_module.package_of_this_code() == "gcs://_ray_pkg_0a.zip"


@pytest.mark.parametrize(
    ("workers", "has_resources", "idle_stops"),
    [({}, False, 0), ({"STARTING": 1}, False, 2), ({"STARTING": 1}, True, 0), ({"RUNNING": 1}, True, 0)],
)
def test_idle_engine_makes_room_for_a_lost_worker(
    serve: FakeServe, make: Make, workers: dict[str, int], has_resources: bool, idle_stops: int
) -> None:
    engine = make()
    serve.present, serve.loads = [replace(ENGINE, workers=workers, users=("1 slice",))], has_resources
    for engine._seen.deployed in [False] * 20 + [True] * 25:  # before the deployment it has no room to lose
        engine.raise_if_broken()
    assert serve.idle_stops == idle_stops
