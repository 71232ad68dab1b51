from __future__ import annotations

import asyncio
import logging
import logging.handlers
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.shared import replica, serve_apps
from airflow_provider_raydatallm.processor.engines.shared.engine import SharedVllmEngine
from airflow_provider_raydatallm.processor.engines.shared.fair_share import FairShare
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import Scaling, SharedEngine, engine_name

GIVEN: dict[str, Any] = {"slice_key": "a", "input_path": "in", "output_path": "out", "prompt": "p"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"engine": "ray_data_llm"}, "it is for engine 'vllm', and this slice's is 'ray_data_llm'"),
        ({"engine": "mine:Engine"}, "this slice's is 'mine:Engine'"),
        ({"model_source": "s3://models/m"}, "this slice's is 'ray_data_llm'"),
        ({"engine_kwargs": {"max_model_len": "auto"}}, "'auto' depends on the rows of one slice"),
        (
            {"engine_kwargs": {"max_model_len": 64}, "on_too_long": "raise_limit"},
            "starts engines with limits of the slice's own",
        ),
    ],
)
def test_slice_that_needs_an_engine_of_its_own_cannot_share_one(given: dict[str, Any], why: str) -> None:
    given = {"model_source": "m", **GIVEN, **given}
    assert not SliceJob(**given).can_share_engine
    with pytest.raises(ValueError, match=f"engine_scope='shared' is not possible: .*{why}"):
        SliceJob(**given, engine_scope="shared")


def test_which_engine_is_shared_decides_no_answer() -> None:
    one, other = (SliceJob(**GIVEN, model_source="m", engine_scope=s) for s in ("slice", "shared"))
    assert fingerprint(one) == fingerprint(other)


def test_scaling_is_to_none_unless_engines_are_kept() -> None:
    scaling = Scaling((2, 4), 32, 90)
    assert scaling.name == "workers-2-to-4-idle-90-s"
    assert {k: v for k, v in scaling.options().items() if k.endswith("replicas")} == {
        "min_replicas": 0, "initial_replicas": 2, "max_replicas": 4,
    }  # fmt: skip
    assert (scaling.options()["target_ongoing_requests"], scaling.options()["downscale_delay_s"]) == (32, 90)
    kept = Scaling((2, 4), 32, None)
    assert (kept.name, kept.options()["min_replicas"]) == ("workers-2-to-4-idle-kept", 2)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "ray-llm-Llama-3.1-8B-Instruct-0123"),
        ("/models/mine#1 (new)/", "ray-llm-mine-1-new--0123"),
    ],
)
def test_engines_are_named_after_their_model(model: str, name: str) -> None:
    assert engine_name(model, "0123") == name


class Vllm:
    """Of AsyncLLM, what a worker asks for: answers rows of one token, keeps the others for ever."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.aborted: list[int] = []

    async def generate(self, prompt: Any, params: Any, request: str) -> AsyncIterator[Any]:
        tokens = prompt["prompt_token_ids"]
        self.begun.append(tokens[0])
        try:
            if len(tokens) > 1:
                await asyncio.Event().wait()
            yield SimpleNamespace(
                outputs=[SimpleNamespace(text="x", token_ids=[1], finish_reason="stop")], num_cached_tokens=0
            )
        except asyncio.CancelledError:
            self.aborted.append(tokens[0])
            raise


class Worker(replica.SharedVllmReplica):
    def __del__(self) -> None:
        """Ends no process, and this one's logging goes on."""


def test_rows_of_a_job_that_is_gone_are_dropped_and_those_of_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, looks = ["a", "b"], 0

    def users(engine: str) -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ConnectionError  # that it is not known who is there ends nobody, nor the looking
        return list(there)

    monkeypatch.setattr(replica, "users", users)
    monkeypatch.setattr(replica, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr("airflow_provider_raydatallm.processor.engines.vllm.worker._sampling_params", str)
    worker: Any = Worker.__new__(Worker)
    worker.__dict__ |= {
        "_engine": Vllm(), "_app": "e", "_name": "w", "_share": FairShare(3), "_asking": Counter(),
        "_gone": {}, "_watching": None,
    }  # fmt: skip

    async def ask(user: str, tokens: list[list[int]]) -> list[int]:
        batch = pa.table({"tokens": tokens, "params": ["{}"] * len(tokens)})
        groups = [group async for group in worker.generate(batch, user)]
        assert {name for g in groups for name in g.column("worker").to_pylist()} == {"w"}
        return [row for g in groups for row in g.column("row").to_pylist()]

    async def work() -> None:
        gone = asyncio.create_task(ask("a", [[1], [2, 2], [3, 3], [4, 4], [5, 5]]))
        while len(worker._engine.begun) < 4:
            await asyncio.sleep(0.01)
        assert worker._engine.begun == [1, 2, 3, 4]  # of three places one came free
        waiting = asyncio.create_task(ask("b", [[6], [7]]))
        await asyncio.sleep(0.05)
        there.remove("a")
        assert await gone == [0]
        assert sorted(await waiting) == [0, 1]
        assert sorted(worker._engine.aborted) == [2, 3, 4]
        assert 5 not in worker._engine.begun
        assert (worker._asking, worker._gone) == ({}, {})
        worker._watching.cancel()

    asyncio.run(work())


def test_worker_whose_engine_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended

    class Engine:
        def __init__(self) -> None:
            self.steps = asyncio.Event()

        async def check_health(self) -> None:
            pass

        async def is_sleeping(self) -> bool:
            await self.steps.wait()
            return False

    monkeypatch.setattr("os._exit", end)
    worker: Any = Worker.__new__(Worker)

    async def look(limit: float) -> None:
        monkeypatch.setattr(replica, "_HUNG_SECONDS", limit)
        await worker.check_health()
        await asyncio.sleep(0.05)

    async def work() -> None:
        worker.__dict__ |= {"_engine": Engine(), "_asked": None, "_heard": 0.0}
        await look(0)
        await look(60)  # a step may take long
        worker._engine.steps.set()
        await asyncio.sleep(0)
        await look(0)  # it answered, and is asked again
        worker._engine.steps.clear()
        await look(0)
        with pytest.raises(Ended):
            await look(0)

    asyncio.run(work())


def test_log_of_serve_is_kept_while_vllm_closes_all_handlers() -> None:
    target = logging.NullHandler()
    handler = logging.handlers.MemoryHandler(1, target=target)
    logger = logging.getLogger("ray.serve")
    logger.addHandler(handler)
    try:
        with replica._serve_logging_kept():
            handler.close()
        assert handler.target is target
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("workers", "has_place", "ended"),
    [({}, False, 0), ({"STARTING": 1}, False, 2), ({"STARTING": 1}, True, 0), ({"RUNNING": 1}, True, 0)],
)
def test_engine_whose_place_another_took_gets_it_back_when_that_is_idle(
    monkeypatch: pytest.MonkeyPatch, workers: dict[str, int], has_place: bool, ended: int
) -> None:
    there = SharedEngine("e", "RUNNING", "", "workers-1-to-1-idle-kept", workers, ("1 slice",))
    ends: list[str] = []
    monkeypatch.setattr(serve_apps, "shared_engine", lambda name: there)
    monkeypatch.setattr(serve_apps, "has_workers", lambda engine: has_place)
    monkeypatch.setattr(serve_apps, "stop_idle_engine", lambda: ends.append("an idle one"))
    engine: Any = SharedVllmEngine.__new__(SharedVllmEngine)
    engine.__dict__ |= {
        "name": "e",
        "_was_there": False,
        "_seen": None,
        "_absent": 0,
        "_workerless": 0,
        "_failed_starts": set(),
        "_waited_for": False,
    }
    for engine._deployed in [False] * 20 + [True] * 25:  # what it is not to have yet, nobody took
        engine.raise_if_broken()
    assert len(ends) == ended


@pytest.mark.parametrize(
    ("workers", "users", "is_in_the_way"),
    [({"RUNNING": 1}, (), True), ({}, ("1 slice",), True), ({}, (), False)],
)
def test_engine_counts_that_has_a_worker_or_is_to_get_one(
    monkeypatch: pytest.MonkeyPatch, workers: dict[str, int], users: tuple[str, ...], is_in_the_way: bool
) -> None:
    there = SharedEngine("other", "RUNNING", "", "workers-1-to-1-idle-600-s", workers, users)
    monkeypatch.setattr(serve_apps, "shared_engines", lambda: [there])
    engine: Any = SharedVllmEngine.__new__(SharedVllmEngine)
    engine.job = SliceJob(**GIVEN, model_source="m", engine_scope="shared", max_shared_engines=1)
    engine.__dict__["name"] = "e"
    assert engine.blocking_engines() == ["shared engine other"] * is_in_the_way


def test_controller_that_is_started_anew_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import RayActorError
    from ray.serve.exceptions import RayServeException

    answers: list[Any] = [RayActorError(), RayServeException("Application 'e' does not exist."), "handle"]

    def ask(name: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return f"{answer} of {name}"

    monkeypatch.setattr("ray.serve.get_app_handle", ask)
    monkeypatch.setattr(serve_apps.time, "sleep", lambda seconds: None)
    assert serve_apps.get_handle("e") == "handle of e"
