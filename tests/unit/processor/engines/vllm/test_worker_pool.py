"""What a worker answers, and how feeders pick one of an engine's own."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.vllm import worker as worker_module
from airflow_provider_raydatallm.processor.engines.vllm import worker_pool
from airflow_provider_raydatallm.processor.engines.vllm.worker_pool import OwnWorkerPool


@pytest.fixture
def open_pool(monkeypatch: pytest.MonkeyPatch) -> Callable[[], OwnWorkerPool]:
    """Three workers that are ready, as a feeder opens them."""
    monkeypatch.setattr(worker_pool, "ready_ref", lambda handle: f"ready {handle}")
    monkeypatch.setattr("ray.wait", lambda refs, num_returns, timeout=None: (refs[:num_returns], []))
    monkeypatch.setattr("ray.get", lambda ref: {"process": {"pid": ref}})
    handles: Any = ["a", "b", "c"]
    return lambda: OwnWorkerPool(handles)


def test_feeders_do_not_all_start_with_the_same_worker(open_pool: Callable[[], OwnWorkerPool]) -> None:
    names = set()
    for _ in range(60):
        with open_pool().least_busy(10) as worker:
            names.add(worker.name)
    assert names == {"0", "1", "2"}


def test_next_rows_go_to_the_least_busy_worker(open_pool: Callable[[], OwnWorkerPool]) -> None:
    pool = open_pool()
    with pool.least_busy(10) as first, pool.least_busy(9) as second, pool.least_busy(3) as third:
        assert len({first.name, second.name, third.name}) == 3
        with pool.least_busy(1) as fourth:
            assert fourth is third


class Vllm:
    """As much of AsyncLLM as a worker uses; a row's first token selects its finish_reason."""

    async def generate(self, prompt: Any, params: Any, request: str) -> AsyncIterator[Any]:
        reason = ("stop", "error", "abort")[prompt["prompt_token_ids"][0]]
        yield SimpleNamespace(
            outputs=[SimpleNamespace(text="half an", token_ids=[1], finish_reason=reason)],
            num_cached_tokens=0,
        )


def worker_of(engine: Vllm) -> Any:
    worker: Any = worker_module.VllmWorker.__new__(worker_module.VllmWorker)
    worker._engine, worker._dead_error = engine, ConnectionError
    return worker


def generate(monkeypatch: pytest.MonkeyPatch, *tokens: int) -> list[dict[str, Any]]:
    monkeypatch.setattr(worker_module, "_sampling_params", str)
    worker = worker_of(Vllm())
    batch = pa.table({"tokens": [[t] for t in tokens], "params": ["{}"] * len(tokens)})

    async def run() -> list[dict[str, Any]]:
        return [row async for group in worker.generate(batch) for row in group.to_pylist()]

    return sorted(asyncio.run(run()), key=lambda row: row["row"])


def test_request_that_vllm_ended_with_an_error_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = generate(monkeypatch, 0, 1)
    assert (good["text"], good["finish_reason"], good["error"]) == ("half an", "stop", None)
    assert (bad["text"], bad["finish_reason"], bad["error_type"]) == (None, None, "RuntimeError")
    assert "finish_reason 'error'" in bad["error"]


def test_engine_that_is_told_to_end_leaves_its_rows_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("os._exit", end)
    with pytest.raises(SystemExit):
        generate(monkeypatch, 2)


def test_rows_of_a_small_batch_are_delivered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneAfterAnother(Vllm):
        async def generate(self, prompt: Any, params: Any, request: str) -> AsyncIterator[Any]:
            await asyncio.sleep(prompt["prompt_token_ids"][0] * 0.15)
            async for output in super().generate({"prompt_token_ids": [0]}, params, request):
                yield output

    monkeypatch.setattr(worker_module, "_sampling_params", str)
    worker = worker_of(OneAfterAnother())
    batch = pa.table({"tokens": [[t] for t in range(6)], "params": ["{}"] * 6})

    async def run() -> list[int]:
        return [group.num_rows async for group in worker.generate(batch)]

    groups = asyncio.run(run())
    assert sum(groups) == 6
    assert len(groups) <= 2


def test_vllm_still_waits_by_the_function_that_the_cpu_executor_replaces() -> None:
    [folder] = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr]
    text = Path(folder, "distributed", "device_communicators", "shm_broadcast.py").read_text()
    assert re.search(r"^from vllm.distributed.utils import .*\bsched_yield$", text, re.MULTILINE)
    assert re.search(r"^ +sched_yield\(\)$", text, re.MULTILINE)
