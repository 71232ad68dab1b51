"""Engines that outlive a slice, behind the real Ray Serve. The first of these tests starts the folder's
engine; the one that ends it is the folder's last test (`../conftest.py`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import (
    RayEngineDiedError,
    RayLLMJobError,
    RayModelNotFoundError,
    RayOutOfMemoryError,
)
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.engine_processes import end_engines, processes
from tests.support.slices import PROGRAM, STUB, WARM_ENGINE, Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

#: So many tokens take the tiny model seconds, and on a slow machine no minutes.
LONG = 500
ENGINE = {"max_model_len": LONG + 200, "max_num_seqs": 8, "hf_overrides": {"max_position_embeddings": 8192}}
#: Another engine, the only one that there may be, which ends as soon as nobody uses it.
SHORT_LIVED = {
    "engine__kwargs": {**ENGINE, "max_num_seqs": 4}, "engine__max_shared": 1, "engine__idle_timeout": 1,
}  # fmt: skip


@pytest.fixture
def asked(ask: Ask, tiny_model: Path, tmp_path: Path) -> Ask:
    """Answer a slice of rows with so many tokens each, by a shared engine."""

    def run(key: str, tokens: list[int], **given: Any) -> dict[str, Any]:
        rows = pa.table({"name": [f"{key} {i}" for i in range(len(tokens))], "tokens": tokens})
        pq.write_table(rows, tmp_path / f"{key}.parquet")
        return ask(**{
            "slice_key": key, "input_path": f"{tmp_path}/{key}.parquet", "model_source": str(tiny_model),
            "output_path": f"{tmp_path}/{key}", "engine__kwargs": ENGINE, "poll_interval": 1.0,
            "sampling_params": {"temperature": 0, "ignore_eos": True, "max_tokens": "{tokens}"}, **given,
        })  # fmt: skip

    return run


def engines(*arguments: str) -> str:
    done = subprocess.run([PROGRAM, "engines", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def listed() -> dict[str, Any]:
    [engine] = json.loads(engines("list", "--json"))
    return dict(engine)


#: Prints whether Serve keeps anything in the cluster's store, and the keys whose values hold a text.
FIND = """
import sys, ray
from ray.experimental.internal_kv import _internal_kv_get as get, _internal_kv_list as keys
ray.init(logging_level="error")
text = sys.argv[1].encode()
places = [(n, key) for n in (None, b"serve") for key in keys(b"", namespace=n)]
found = [(n, key) for n, key in places if text in (get(key, namespace=n) or b"")]
print(any(n == b"serve" for n, _ in places), found)
"""


#: A user's own application, named as engines are, idle; or, with another argument, prints whether it answers.
USERS = """
import sys, ray
from ray import serve
ray.init(logging_level="error")
if sys.argv[1] == "deploy":
    @serve.deployment(name="workers-1-to-1-idle-600-s", ray_actor_options={"num_cpus": 0})
    class Users:
        async def ask(self): return "here"
    serve.run(Users.bind(), name="ray-llm-team", route_prefix=None)
else:
    print(serve.get_app_handle("ray-llm-team").ask.remote().result(timeout_s=60))
"""


def on_cluster(head: LocalHead, code: str, argument: str) -> str:
    """Returns the last line that a program prints."""
    command, environment = [sys.executable, "-c", code, argument], os.environ | head.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return (done.stdout.splitlines() or [""])[-1]


def test_slices_at_once_and_after_each_other_have_one_engine(
    asked: Ask, ray_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    # A job's own credentials are no part of what an engine is, and end with the job.
    monkeypatch.setenv("AIRFLOW_CONN_HUB", json.dumps({"conn_type": "generic", "password": "kept-by-nobody"}))
    given = {"model_conn_id": "hub", "engine__kwargs": WARM_ENGINE}
    threads = [in_thread(asked, results, key=key, tokens=[8] * 40, **given) for key in ("a", "b")]
    for thread in threads:
        thread.join(300)
    [engine] = processes(ray_head, "VLLM::EngineCore")
    results.append(asked("c", [8] * 40, engine__kwargs=WARM_ENGINE))
    assert [p.pid for p in processes(ray_head, "VLLM::EngineCore")] == [engine.pid]
    for result in results:
        assert result["counts"]["succeeded"] == 40, result
        assert result["tokens"]["output"] == 320
        assert result["balance"]["workers"] == 1
        assert result["seconds"]["start"]["environment"] > 0
        assert result["seconds"]["start"]["imports"] > 0
    *at_once, came_later = (result["seconds"] for result in results)
    waited = max(at_once, key=lambda seconds: seconds["engine_start"])
    start = waited["start"]
    assert 0 < start["worker_imports"] + start["engine"] < waited["engine_start"]
    assert 0 < start["load"] + start["compile"] + start["warm_up"] < start["engine"]
    assert {came_later["start"][name] for name in ("worker_imports", "engine", "load")} == {None}
    for title in ("ray::ServeController", "ray::ServeReplica:ray-llm-model"):
        [process] = processes(ray_head, title)
        assert "kept-by-nobody" not in process.environ().values()
    # vLLM's own process loaded the model with it, after the worker had begun.
    assert engine.environ()["HF_TOKEN"] == "kept-by-nobody"
    assert on_cluster(ray_head, FIND, "kept-by-nobody") == "True []"


def test_slice_with_a_lower_limit_is_answered_by_the_same_engine_and_held_to_its_own(
    asked: Ask, ray_head: LocalHead, tmp_path: Path
) -> None:
    asked("a", [8], engine__kwargs=WARM_ENGINE)
    [engine] = processes(ray_head, "VLLM::EngineCore")
    # The second answer reaches the limit, and the third prompt is over it.
    rows = pa.table({"name": ["Ada", "Ada", "Ada " * 100], "tokens": [8, 500, 8]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    given = {"input_path": f"{tmp_path}/rows.parquet", "quality__max_quarantine": 1.0}
    shared = asked("b", [], **given, engine__kwargs={"max_model_len": 48})
    assert [p.pid for p in processes(ray_head, "VLLM::EngineCore")] == [engine.pid]
    counts = shared["counts"]
    assert (counts["succeeded"], counts["truncated"], counts["quarantined"]) == (2, 2, 1)
    own = asked("c", [], **given, engine__kwargs={"max_model_len": 48}, engine__scope="slice")
    for name in ("counts", "tokens", "quarantine_reasons"):
        assert own[name] == shared[name]
    answers = [pq.read_table(r["output_path"], partitioning=None).to_pylist() for r in (shared, own)]
    assert answers[0] == answers[1]


@pytest.mark.long
def test_small_slice_does_not_wait_for_a_large_one_whose_rows_end_with_its_job(
    asked: Ask, ray_head: LocalHead, submitted: list[str], tmp_path: Path
) -> None:
    results: list[Any] = []
    large = in_thread(asked, results, key="large", tokens=[LONG] * 5000)
    wait_for(lambda: rows_in(fragments(tmp_path / "large")) > 0)
    assert asked("small", [8] * 10)["counts"]["succeeded"] == 10
    assert large.is_alive()
    assert [user.split("ds=")[1] for user in listed()["users"]] == ["large"]

    RayHook("ray_default").call(jobs_api.stop(submitted[0]))
    large.join(120)
    assert "was told to stop" in str(results)
    workers = [c for p in processes(ray_head, "VLLM::EngineCore") for c in [p, *p.children(recursive=True)]]

    def busy() -> float:
        before = sum(sum(p.cpu_times()[:2]) for p in workers)
        psutil.cpu_percent(interval=3)
        return (sum(sum(p.cpu_times()[:2]) for p in workers) - before) / 3

    wait_for(lambda: busy() < 0.1, 120)  # such rows are hours of work
    assert listed()["users"] == []


@pytest.mark.parametrize(
    ("victim", "how"),
    [
        ("VLLM::EngineCore", signal.SIGKILL),
        # `python -m tests.chaos --modes shared` kills these, too.
        pytest.param("ray::ServeReplica", signal.SIGKILL, marks=pytest.mark.long),
        pytest.param("ray::ServeController", signal.SIGKILL, marks=pytest.mark.long),
        # What hangs is held to for minutes.
        pytest.param("VLLM::EngineCore", signal.SIGSTOP, marks=pytest.mark.long),
        pytest.param("ray::ServeReplica", signal.SIGSTOP, marks=pytest.mark.long),
    ],
)
def test_whatever_dies_or_hangs_of_a_shared_engine_the_slice_is_finished(
    asked: Ask, ray_head: LocalHead, tmp_path: Path, victim: str, how: signal.Signals
) -> None:
    tokens = [8, 200] * 800
    results: list[Any] = []
    thread = in_thread(asked, results, key="a", tokens=tokens, engine__kwargs=WARM_ENGINE)
    wait_for(lambda: rows_in(fragments(tmp_path / "a")) > 0)
    victims = processes(ray_head, victim)
    for process in victims:
        process.send_signal(how)
    assert rows_in(fragments(tmp_path / "a")) < len(tokens)
    thread.join(900)
    [result] = results
    assert (result["counts"]["succeeded"], result["tokens"]["output"]) == (len(tokens), sum(tokens)), result
    answers = pq.read_table(result["output_path"], partitioning=None)
    assert answers.column("name").to_pylist() == [f"a {i}" for i in range(len(tokens))]
    others = processes(ray_head, victim)
    assert others
    assert {p.pid for p in others}.isdisjoint(p.pid for p in victims)


#: An engine of one's own, which finds no memory.
POOR = """
from stub_engine import StubEngine

class Poor(StubEngine):
    def answer_requests(self, requests, deliver):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
"""


def test_run_that_has_no_memory_names_the_engine_that_holds_some(
    asked: Ask, ray_head: LocalHead, tmp_path: Path
) -> None:
    asked("a", [8], engine__kwargs=WARM_ENGINE)
    there = listed()
    assert there["identity"]["arguments"]["max_model_len"] == 256
    assert there["worker"]["memory"] > 2e9
    [state, runs] = engines("list").splitlines()
    assert f"holds {there['worker']['memory'] / 1e9:.1f} GB of memory, idle for " in state
    assert re.search(r"/model with .*max_model_len=256", runs)
    (tmp_path / "poor.py").write_text(POOR)
    code = {**STUB, "engine": "poor:Poor", "code_paths": [*STUB["code_paths"], f"{tmp_path}/poor.py"]}
    with pytest.raises(RayOutOfMemoryError) as caught:
        asked("b", [8], **code, engine__kwargs={}, sampling_params={})
    named = caught.value.failure.advice[1]
    assert re.match(f"Shared engines hold memory, too: {there['name']} .holds .*, idle for ", named)


def test_engines_end_when_they_are_told_to_and_a_users_application_does_not(
    asked: Ask, ray_head: LocalHead
) -> None:
    """With the engine that the folder's tests leave."""
    asked("a", [8], engine__kwargs=WARM_ENGINE)
    on_cluster(ray_head, USERS, "deploy")
    there = listed()
    assert (there["status"], there["workers"], there["users"]) == ("RUNNING", {"RUNNING": 1}, [])
    assert engines("stop", "--all") == f"ended {there['name']}\n"
    assert not processes(ray_head, "VLLM::EngineCore")
    assert on_cluster(ray_head, USERS, "ask") == "here"


@pytest.mark.long
def test_idle_engine_gives_way_ends_and_comes_back_and_ends_by_force_with_its_slice(
    asked: Ask, ray_head: LocalHead, tmp_path: Path
) -> None:
    end_engines()
    asked("a", [8])
    [first] = processes(ray_head, "VLLM::EngineCore")
    asked("b", [8], **SHORT_LIVED)
    assert not first.is_running()
    assert processes(ray_head, "VLLM::EngineCore")
    wait_for(lambda: not processes(ray_head, "VLLM::EngineCore"))
    there = listed()
    assert there["workers"] == {}

    tokens = [8, LONG] * 5000  # for hours: what ends it is the command, however long that takes
    results: list[Any] = []
    thread = in_thread(asked, results, key="c", tokens=tokens, **SHORT_LIVED)
    wait_for(lambda: rows_in(fragments(tmp_path / "c")) > 0)
    name = listed()["name"]
    assert name == there["name"]
    assert name in subprocess.run([PROGRAM, "engines", "stop", name], capture_output=True, text=True).stderr
    assert engines("stop", name, "--force") == f"ended {name}\n"
    thread.join(400)
    [error] = results
    assert isinstance(error, RayEngineDiedError)
    assert "was stopped while this slice used it" in str(error)
    assert engines("list") == "no shared engine is on this cluster\n"


@pytest.mark.long
def test_one_slice_has_its_engine_scaled_up_and_both_workers_answer(asked: Ask, tmp_path: Path) -> None:
    tokens = [LONG] * 300  # minutes of one worker: the second is asked for after 10 s, and loads its model
    results: list[Any] = []
    thread = in_thread(
        asked,
        results,
        key="a",
        tokens=tokens,
        engine__workers=(1, 2),
        engine__batch_size=16,
        engine__max_concurrent_batches=2,
    )
    wait_for(lambda: rows_in(fragments(tmp_path / "a")) > 0)
    assert listed()["workers"].get("RUNNING") == 1
    wait_for(lambda: listed()["workers"] == {"RUNNING": 2})
    thread.join(600)
    [result] = results
    assert (result["counts"]["succeeded"], result["tokens"]["output"]) == (300, sum(tokens)), result
    assert result["balance"]["workers"] == 2, result
    assert engines("stop", "--all").startswith("ended ray-llm-model-")
    assert engines("list") == "no shared engine is on this cluster\n"


@pytest.mark.long
def test_engine_that_was_there_and_cannot_start_again_ends_the_slice_with_the_reason(
    asked: Ask, ray_head: LocalHead, tiny_model: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    given = {"model_source": f"{tmp_path}/model", "engine__idle_timeout": 1}
    asked("a", [8], **given)
    wait_for(lambda: not processes(ray_head, "VLLM::EngineCore"))
    # The same by its name, size and age, as of a disk that went bad.
    weights = tmp_path / "model" / "model.safetensors"
    was = weights.stat()
    weights.write_bytes(bytes(was.st_size))
    os.utime(weights, ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(RayLLMJobError, match="Expecting value"):  # vLLM's word for it
        asked("b", [8], **given)
    assert not processes(ray_head, "VLLM::EngineCore")


@pytest.mark.long
def test_shared_engine_that_cannot_start_is_told_at_once(
    asked: Ask, tiny_model: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    before = engines("list")
    results: list[Any] = []
    threads = [
        in_thread(asked, results, key=key, tokens=[8], model_source=f"{tmp_path}/model") for key in ("a", "b")
    ]
    for thread in threads:
        thread.join(400)
    first, second = sorted(results, key=lambda e: isinstance(e, RayEngineDiedError))
    assert isinstance(first, RayModelNotFoundError)
    assert str(first).startswith("RuntimeError: Cannot find any model weights with")
    # Who comes second may see no more than that it is gone.
    assert isinstance(second, (RayModelNotFoundError, RayEngineDiedError))
    assert engines("list") == before
