"""The driver's side of a shared engine: what it waits for, starts and believes, by what it sees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from ray.exceptions import RayActorError

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared import engine as engine_module
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.engine import SharedVllmEngine, SharedWorkerPool
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import Scaling, SharedEngine
from airflow_provider_raydatallm.processor.engines.vllm.engine import _threaded_pool
from airflow_provider_raydatallm.processor.sizing.cluster_probe import model_files
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, Resources, SizingInputs
from tests.support.in_process import job_of

NAME = "ray-llm-m-0"
SCALING = Scaling((2, 4), 32, 600)
ENGINE = SharedEngine(NAME, "RUNNING", "", SCALING.name, {"RUNNING": 2}, ())
GPU = {"accelerator_type": "L4", "engine_kwargs": {"tensor_parallel_size": 2}}


class Cluster:
    """Of a cluster, which shared engines are there, and what was done to them."""

    def __init__(self) -> None:
        self.engines: list[SharedEngine] = []
        self.loads = True
        self.ensured: list[tuple[Any, ...]] = []
        self.options: dict[str, Any] = {}
        self.ended: list[tuple[str, dict[str, bool]]] = []
        self.used: list[str] = []
        self.told: list[str] = []

    def shared_engines(self) -> list[SharedEngine]:
        return self.engines

    def shared_engine(self, name: str) -> SharedEngine | None:
        return next((e for e in self.engines if e.name == name), None)

    def has_workers(self, engine: SharedEngine) -> bool:
        return bool(engine.workers.get("RUNNING") or (engine.workers.get("STARTING") and self.loads))

    def register_user(self, engine: str, slice_path: str) -> tuple[Any, str]:
        self.used.append(engine)
        return object(), f"0 {slice_path}"

    def ensure_running(self, *arguments: Any, **options: Any) -> None:
        self.ensured.append(arguments)
        self.options = options

    def stop_engine(self, name: str, **how: bool) -> bool:
        self.ended.append((name, how))
        return True

    def start_of(self, engine: str) -> dict[str, float]:
        self.told.append(engine)
        return {"engine": 4.0}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    for name in (
        "shared_engines",
        "shared_engine",
        "has_workers",
        "register_user",
        "ensure_running",
        "stop_engine",
    ):
        monkeypatch.setattr(serve_apps, name, getattr(made, name))
    monkeypatch.setattr(engine_module, "_start_of", made.start_of)
    return made


Make = Callable[..., SharedVllmEngine]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """An engine of 2 to 4 workers on GPUs, as far as it can tell."""
    monkeypatch.setattr(
        "airflow_provider_raydatallm.processor.engines.vllm.engine_base.vllm_is_cpu_build", lambda kind: False
    )

    def engine(rows: int = 10_000, **given: Any) -> SharedVllmEngine:
        least: dict[str, Any] = {
            "input_path": "in", "output_path": "out", "engine": "vllm", "engine_scope": "shared",
            "model_source": "m", "concurrency": (2, 4), "batch_size": 32, "max_concurrent_batches": 32,
        }  # fmt: skip
        job = job_of(**least | given)
        made = SharedVllmEngine(job, rows)
        made.__dict__["name"] = NAME
        return made

    return engine


@pytest.mark.parametrize(
    "there",
    [
        None,
        replace(ENGINE, workers={}),  # scaled to none
        replace(ENGINE, status="DELETING"),
        replace(ENGINE, status="DEPLOY_FAILED"),
        replace(ENGINE, status="NOT_STARTED"),
        replace(ENGINE, deployment="workers-1-to-1-idle-600-s"),  # nobody's: it is started anew
        replace(ENGINE, trigger="REPLICA_STARTUP_FAILED", workers={"STARTING": 1}),  # so is this
    ],
)
def test_slice_needs_all_when_there_is_no_engine_to_share(
    cluster: Cluster, make: Make, there: SharedEngine | None
) -> None:
    engine = make(**GPU)
    cluster.engines = [e for e in (there, replace(ENGINE, name="ray-llm-another-0")) if e is not None]
    cluster.loads = False
    assert engine.resources_needed_now == engine.resources
    assert (engine.resources.cpus, engine.resources.gpus) == (8, 4)  # 2 workers, 4 feeders, 2 beside


@pytest.mark.parametrize(
    "there",
    [
        ENGINE,
        replace(ENGINE, status="DEPLOYING", workers={"STARTING": 1}),
        # Others use it: it stays as it is.
        replace(ENGINE, deployment="workers-1-to-1-idle-600-s", users=("another",)),
    ],
)
def test_slice_needs_only_what_is_beside_an_engine_that_is_there(
    cluster: Cluster, make: Make, there: SharedEngine
) -> None:
    cluster.engines = [there]
    needed = make(**GPU).resources_needed_now
    assert needed == Resources(6, 0, needed.breakdown)
    assert (cluster.used, cluster.ensured) == ([], [])  # who only queues keeps no engine


def test_engine_that_waits_for_its_own_place_counts_as_none(cluster: Cluster, make: Make) -> None:
    engine = make()
    cluster.engines, cluster.loads = [replace(ENGINE, workers={"STARTING": 1})], False
    assert engine.resources_needed_now == engine.resources
    assert not engine.is_starting()
    cluster.loads = True
    assert engine.is_starting()
    cluster.engines = []
    assert not engine.is_starting()


def test_others_are_in_the_way_when_there_are_as_many_as_may_be(cluster: Cluster, make: Make) -> None:
    first, second = (replace(ENGINE, name=f"ray-llm-{n}-0") for n in ("a", "b"))
    cluster.engines = [first, replace(second, workers={}), ENGINE]
    assert make().blocking_engines() == []
    cluster.engines = [first, replace(second, workers={})]
    assert make(max_shared_engines=2).blocking_engines() == []  # one without workers does not count
    assert make(max_shared_engines=1).blocking_engines() == ["shared engine ray-llm-a-0"]
    cluster.engines = [first, second, ENGINE]
    assert make(max_shared_engines=1).blocking_engines() == []  # it is there itself: nobody has to go for it
    cluster.engines = [first, second, replace(ENGINE, workers={})]
    assert make(max_shared_engines=1).blocking_engines() == [
        f"shared engine ray-llm-{n}-0" for n in ("a", "b")
    ]


@pytest.fixture
def started(cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SharedVllmEngine]:
    monkeypatch.setattr(
        "ray.get_runtime_context",
        lambda: SimpleNamespace(
            runtime_env={
                "py_modules": ["gcs://mine.zip"],
                "pip": ["einops"],
                "_ray_commit": "0",
                "env_vars": {"AWS_SECRET_ACCESS_KEY": "s", "RAY_X": "x", "HF_HOME": "/models"},
            }
        ),
    )

    def start(**given: Any) -> SharedVllmEngine:
        engine = make(**given)
        engine.on_admitted()
        engine._start()
        return engine

    return start


def test_engine_is_started_with_what_its_workers_hold_and_no_jobs_own_environment(
    cluster: Cluster, started: Make
) -> None:
    engine = started(**GPU)
    assert cluster.used == [NAME]
    [(name, scaling, worker, arguments)] = cluster.ensured
    assert (name, scaling, worker.__name__) == (NAME, SCALING, "SharedVllmReplica")
    assert arguments[0]["model"] == "m"
    assert cluster.options == {
        "num_cpus": 1,
        "num_gpus": 2,
        "accelerator_type": "L4",
        "runtime_env": {"pip": ["einops"], "env_vars": {"HF_HOME": "/models"}},
    }
    assert engine.shared_actor_prefix == "SERVE_REPLICA::ray-llm-m-0#"


def test_engine_on_cpus_holds_no_gpu(
    cluster: Cluster, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(
        "airflow_provider_raydatallm.processor.engines.vllm.engine_base.vllm_is_cpu_build", lambda kind: True
    )
    started()
    assert cluster.options.keys() == {"num_cpus", "runtime_env"}
    assert cluster.options["runtime_env"]["env_vars"]["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_engine_may_have_all_gpus_and_is_compiled_however_small_the_slice(make: Make) -> None:
    engine = make(rows=100, concurrency="auto")
    engine.choose_sizes(SizingInputs(ClusterFacts({"CPU": 64, "GPU": 8}, {}, 8, 80_000_000_000)))
    assert engine.workers == (1, 8)
    assert "enforce_eager" not in engine.engine_kwargs
    assert not engine.needs_past_throughput


@pytest.mark.parametrize(
    "other",
    [
        {"model_source": "n"},
        {"engine_kwargs": {"max_model_len": 64}},
        {"accelerator_type": "L4"},
    ],
)
def test_only_equal_engines_have_one_name(started: Make, other: dict[str, Any]) -> None:
    def name(**given: Any) -> str:
        engine = started(**given)
        del engine.__dict__["name"]
        return engine.name

    asks_else = {"prompt": "else", "slice_key": "b", "sampling_params": {"max_tokens": 3}, "concurrency": 1}
    assert name() == name(**asks_else)
    assert name() != name(**other)


def test_environment_makes_another_engine_but_not_its_jobs_own_part(
    started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for env in ({}, {"env_vars": {"AWS_A": "1"}, "py_modules": ["gcs://b.zip"]}, {"env_vars": {"A": "1"}}):
        monkeypatch.setattr("ray.get_runtime_context", lambda env=env: SimpleNamespace(runtime_env=env))
        engine = started()
        del engine.__dict__["name"]
        names.append(engine.name)
    assert names[0] == names[1] != names[2]


def test_model_with_other_files_makes_another_engine(started: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for age in (1, 1, 2):
        monkeypatch.setattr(engine_module, "model_files", lambda source, age=age: [[("config.json", 2, age)]])
        engine = started()
        del engine.__dict__["name"]
        names.append(engine.name)
    assert names[0] == names[1] != names[2]


def test_worker_that_dies_leaves_the_rest_of_its_batch_to_be_asked_again() -> None:
    asked: list[Any] = []

    class Handle:
        def remote(self, batch: pa.Table, user: str) -> Iterator[pa.Table]:
            asked.append((batch, user))
            yield batch
            raise RayActorError

    workers: Any = SharedWorkerPool.__new__(SharedWorkerPool)
    workers.__dict__ |= {"_handle": Handle(), "_user": "0 s3://out"}
    batch = pa.table({"tokens": [[1]]})
    with workers.least_busy(1) as worker:
        assert list(worker.generate(batch)) == [batch]
    assert asked == [(batch, "0 s3://out")]


def test_running_engine_has_started(cluster: Cluster, started: Make) -> None:
    engine = started()
    cluster.engines = [replace(ENGINE, status="DEPLOYING", workers={"STARTING": 1})]
    engine.raise_if_broken()
    assert not engine.is_ready
    cluster.engines = [ENGINE]
    engine.raise_if_broken()
    assert engine.is_ready


def test_start_is_told_of_an_engine_that_was_waited_for_and_once(cluster: Cluster, started: Make) -> None:
    cluster.engines = [ENGINE]
    engine = started()
    for _ in range(2):
        engine.raise_if_broken()
    assert (engine.startup_seconds, cluster.told) == ({}, [])  # it was there

    cluster.engines = [replace(ENGINE, status="DEPLOYING", workers={"STARTING": 1})]
    engine = started()
    engine.raise_if_broken()
    assert (engine.startup_seconds, cluster.told) == ({}, [])
    cluster.engines = [ENGINE]
    for _ in range(2):
        engine.raise_if_broken()
    assert (engine.startup_seconds, cluster.told) == ({"engine": 4.0}, [NAME])


def test_engine_that_cannot_start_is_ended_and_told_with_its_reason(cluster: Cluster, started: Make) -> None:
    engine = started()
    cluster.engines = [replace(ENGINE, status="DEPLOY_FAILED", message="no weights", workers={})]
    with pytest.raises(RuntimeError, match="the shared engine could not be started: no weights"):
        engine.raise_if_broken()
    # Another may have been started meanwhile, which is left alone.
    assert cluster.ended == [(NAME, {"force": True, "only_failed": True})]


def failing(times: int) -> SharedEngine:
    return replace(
        ENGINE,
        status="UNHEALTHY",
        trigger="REPLICA_STARTUP_FAILED",
        message=f"failed to start {times} times in a row: no memory",
        workers={"STARTING": 1},
    )


def test_engine_that_was_there_and_cannot_start_again_is_ended_at_the_second_failure(
    cluster: Cluster, started: Make
) -> None:
    engine = started()
    for seen in (failing(1), failing(1), ENGINE, failing(1), failing(1)):  # once it came after all
        cluster.engines = [seen]
        engine.raise_if_broken()
    cluster.engines = [failing(2)]
    with pytest.raises(RuntimeError, match="could not be started: failed to start 2 times in a row: no mem"):
        engine.raise_if_broken()
    assert cluster.ended == [(NAME, {"force": True, "only_failed": True})]


def test_failure_of_an_engine_that_is_still_to_be_started_anew_is_not_this_slices(
    cluster: Cluster, make: Make
) -> None:
    cluster.engines = [replace(ENGINE, status="DEPLOY_FAILED", message="of another", workers={})]
    make().raise_if_broken()
    assert cluster.ended == []


def test_engine_scales_by_what_any_slice_may_ask(cluster: Cluster, started: Make) -> None:
    given = {"batch_size": None, "max_concurrent_batches": None}
    assert started(rows=50, **given)._scaling == started(rows=10_000_000, **given)._scaling == SCALING


@pytest.mark.parametrize("there", [[], [replace(ENGINE, status="DELETING")]])
def test_engine_that_is_gone_for_three_looks_ends_the_slice(
    cluster: Cluster, started: Make, there: list[SharedEngine]
) -> None:
    engine = started()
    for seen in (there, there, [ENGINE], there, there):  # once it was back
        cluster.engines = seen
        engine.raise_if_broken()
    with pytest.raises(SliceError, match="was ended while this slice used it") as caught:
        engine.raise_if_broken()
    assert caught.value.kind == "engine"


def test_room_is_not_made_by_the_engine_that_it_is_for(cluster: Cluster, make: Make) -> None:
    kept: list[str | None] = []
    engine = make()
    for there in ([ENGINE], [replace(ENGINE, deployment="workers-1-to-1-idle-600-s")], []):
        cluster.engines = there
        kept.append(engine.engine_to_keep)
    assert kept == [NAME, None, None]


def test_engine_is_claimed_from_admission_on_and_every_round_looks_anew(
    cluster: Cluster, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.kill", lambda actor: None)
    engine = started()
    assert cluster.used == [NAME]
    cluster.engines = [ENGINE]
    engine.raise_if_broken()
    assert engine.is_ready
    engine.stop()
    cluster.engines = []  # ended between two rounds
    engine.on_admitted()
    assert cluster.used == [NAME, NAME]
    for _ in range(5):
        engine.raise_if_broken()
    assert not engine.is_ready
    assert not engine.is_starting()


def test_engine_that_was_not_asked_for_yet_is_not_missed(cluster: Cluster, make: Make) -> None:
    engine = make()
    for _ in range(5):
        engine.raise_if_broken()


def test_what_was_seen_last_holds_while_serve_cannot_tell(
    cluster: Cluster, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> SharedEngine:
        raise ConnectionError

    engine = started()
    cluster.engines = [ENGINE]
    engine.raise_if_broken()
    monkeypatch.setattr(serve_apps, "shared_engine", unknown)
    for _ in range(5):
        engine.raise_if_broken()
    assert engine.is_starting()


def test_rows_that_are_tried_again_are_asked_and_not_taken_from_the_cache(make: Make) -> None:
    def spaces(**given: Any) -> Iterator[Any]:
        engine = make(answer_cache="/answers", **given)
        yield engine._next_answer_space()
        yield engine._next_answer_space()
        engine.choose_sizes(SizingInputs(None, limit_raised=True))
        yield engine._next_answer_space()

    first, again, _ = spaces()
    assert (first.read, first.keep_cut, again.read) == (True, True, False)
    *_, long = spaces(
        on_too_long="raise_limit", engine_kwargs={"max_model_len": 64}, engine_scope="slice"
    )  # for rows that nobody asked yet
    assert long.read
    assert not next(spaces(retry_quarantined=True)).read
    assert not next(spaces(engine_kwargs={"max_model_len": -1})).keep_cut  # memory may have cut it


def test_slice_goes_on_without_a_cache_whose_model_nobody_can_look_at(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(source: str) -> Any:
        raise ConnectionError("the node is gone")

    monkeypatch.setattr("airflow_provider_raydatallm.processor.engines.vllm.engine.model_files", gone)
    assert make(answer_cache="/answers")._next_answer_space() is None
    assert "answer_cache: the node is gone. The slice goes on without it" in capsys.readouterr().err


@pytest.mark.parametrize(("actors", "waiting"), [((2, 2), 2), ((2, 8), 16)])
def test_feeders_get_company_when_ray_data_sees_that_they_have_enough_to_do(
    actors: tuple[int, int], waiting: int
) -> None:
    from ray.data import DataContext

    strategy: Any = _threaded_pool(actors, 16)["compute"]
    assert strategy.max_tasks_in_flight_per_actor == 16 + waiting
    threshold = DataContext.get_current().autoscaling_config.actor_pool_util_upscaling_threshold
    assert ((16 + waiting) / 16 >= threshold) == (actors[0] < actors[1])


def test_slice_that_ends_leaves_the_engine_to_others(
    cluster: Cluster, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr("ray.kill", killed.append)
    monkeypatch.setattr("ray.wait", lambda *given, **options: ([], []))
    engine = started()
    repeats: Any = object()
    (user, _), engine._repeats = engine._user or (None, None), repeats
    engine.stop()
    engine.stop()
    assert killed == [repeats, user]
    assert cluster.ended == []


def test_model_that_is_replaced_in_place_is_another(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights").mkdir()
    [[(name, size, _)]] = before = model_files(str(tmp_path))
    assert (name, size) == ("config.json", 2)
    assert model_files(str(tmp_path)) == before
    os.utime(tmp_path / "config.json", ns=(0, 0))  # of the same size
    assert model_files(str(tmp_path)) != before
    (tmp_path / "config.json").write_text("{...}")
    os.utime(tmp_path / "config.json", ns=(0, 0))  # of the same age
    assert model_files(str(tmp_path)) == [[("config.json", 5, 0)]]


def test_hub_id_has_no_files_here() -> None:
    assert model_files("meta-llama/Llama-3.1-8B-Instruct") == []


def test_package_of_the_code_is_known_where_ray_brought_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_module._package_of_this_code() is None
    there = "/tmp/ray/session/runtime_resources/py_modules_files/_ray_pkg_0a/airflow_provider_raydatallm/x.py"
    monkeypatch.setattr(engine_module, "__file__", there)
    assert engine_module._package_of_this_code() == "gcs://_ray_pkg_0a.zip"
