"""A shared worker: whose rows it drops, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.shared import replica, serve_apps
from airflow_provider_raydatallm.processor.engines.shared.fair_share import FairShare
from airflow_provider_raydatallm.processor.engines.vllm.lora import WorkerAdapters
from airflow_provider_raydatallm.processor.engines.vllm.repetition import RepetitionSample
from airflow_provider_raydatallm.processor.engines.vllm.worker import worker as worker_module
from airflow_provider_raydatallm.processor.engines.vllm.worker.streams import RowStreams
from tests.support.async_tests import async_test


class Vllm:
    """As much of AsyncLLM as a worker uses: it answers rows of one token, and never finishes others."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.aborted: list[int] = []

    async def generate(self, prompt: Any, params: Any, request: str, lora_request: Any) -> AsyncIterator[Any]:
        tokens = prompt["prompt_token_ids"]
        self.begun.append(tokens[0])
        try:
            if len(tokens) > 1:
                await asyncio.Event().wait()
            yield SimpleNamespace(
                outputs=[
                    SimpleNamespace(text="x", token_ids=[1], finish_reason="stop", cumulative_logprob=None)
                ],
                num_cached_tokens=0,
            )
        except asyncio.CancelledError:
            self.aborted.append(tokens[0])
            raise


class Worker(replica.SharedVllmReplica):
    def __del__(self) -> None:
        """Kills no process, and keeps logging enabled."""


@pytest.mark.slow
@async_test
async def test_only_rows_of_a_job_that_is_gone_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    users, polls = ["a", "b"], 0

    def poll(engine: str) -> list[str]:
        nonlocal polls
        polls += 1
        if polls == 1:
            raise ConnectionError  # drops no rows, and is tried again
        return list(users)

    monkeypatch.setattr(serve_apps.SERVE, "users", poll)
    monkeypatch.setattr(replica, "_USERS_POLL_SECONDS", 0.01)
    parsed = worker_module._Generate(cast("Any", None), None), None
    monkeypatch.setattr(worker_module, "_parse_request", lambda *_: parsed)
    worker: Any = Worker.__new__(Worker)
    worker.__dict__ |= {
        "_engine": Vllm(), "_streams": RowStreams(), "_dead_error": ConnectionError, "_app": "e",
        "_name": "w", "_share": FairShare(3), "_batches": Counter(), "_user_gone": {}, "_user_watch": None,
        "_reasoning": None, "_shows_control_tokens": False,
        "_adapters": WorkerAdapters(()), "_repetition": RepetitionSample(),
    }  # fmt: skip

    finished: list[tuple[str, int]] = []

    async def generate(user: str, tokens: list[list[int]]) -> list[int]:
        rows = pa.table({"row": range(len(tokens)), "tokens": tokens, "params": ["{}"] * len(tokens)})
        async for group in worker.generate(rows, f"feeder of {user}", user):
            assert set(group.column("worker").to_pylist()) == {"w"}
            finished.extend((user, row) for row in group.column("row").to_pylist())
        return [row for of, row in finished if of == user]

    gone = asyncio.create_task(generate("a", [[1], [2, 2], [3, 3], [4, 4], [5, 5]]))
    while len(worker._engine.begun) < 4 or not finished:
        await asyncio.sleep(0.01)
    assert worker._engine.begun == [1, 2, 3, 4]  # one of three slots came free
    waiting = asyncio.create_task(generate("b", [[6], [7]]))
    await asyncio.sleep(0.05)
    users.remove("a")
    assert await gone == [0]
    assert sorted(await waiting) == [0, 1]
    assert sorted(worker._engine.aborted) == [2, 3, 4]
    assert 5 not in worker._engine.begun
    assert (worker._batches, worker._user_gone) == ({}, {})
    worker._user_watch.cancel()


@async_test
async def test_worker_of_a_hanging_engine_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exited(BaseException):
        pass

    def exit(code: int) -> None:
        raise Exited

    class Engine:
        def __init__(self) -> None:
            self.steps = asyncio.Event()

        async def check_health(self) -> None:
            pass

        async def is_sleeping(self) -> bool:
            await self.steps.wait()
            return False

    monkeypatch.setattr("os._exit", exit)
    worker: Any = Worker.__new__(Worker)

    async def check(limit: float) -> None:
        monkeypatch.setattr(replica, "_HUNG_SECONDS", limit)
        await worker.check_health()
        await asyncio.sleep(0.05)

    worker.__dict__ |= {"_engine": Engine(), "_ping": None, "_ping_sent_at": 0.0}
    await check(0)
    await check(60)  # a step may take long
    worker._engine.steps.set()
    await asyncio.sleep(0)
    await check(0)  # it answered, and is pinged again
    worker._engine.steps.clear()
    await check(0)
    with pytest.raises(Exited):
        await check(0)


def test_serves_log_handlers_survive_vllms_import() -> None:
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


def test_worker_has_the_models_token_only_while_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    lend = replica._model_token_lent
    monkeypatch.setattr(serve_apps, "SERVE", SimpleNamespace(model_token={"app": "hub", "open": None}.get))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with contextlib.suppress(RuntimeError), lend("app"):
        assert os.environ["HF_TOKEN"] == "hub"
        raise RuntimeError
    assert "HF_TOKEN" not in os.environ
    with lend("open"):
        assert "HF_TOKEN" not in os.environ
    monkeypatch.setenv("HF_TOKEN", "of-the-node")
    with lend("app"):
        assert os.environ["HF_TOKEN"] == "of-the-node"
    assert os.environ["HF_TOKEN"] == "of-the-node"
