"""What a worker answers, and what its death says."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import WorkerDiedError
from airflow_provider_raydatallm.processor.engines.vllm.lora import WorkerAdapters
from airflow_provider_raydatallm.processor.engines.vllm.repetition import RepetitionSample
from airflow_provider_raydatallm.processor.engines.vllm.worker import worker as worker_module
from airflow_provider_raydatallm.processor.engines.vllm.worker.streams import RowStreams


@pytest.mark.parametrize(("message", "by_itself"), [
    ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR", True),
    ("The actor is dead because it was killed by `ray.kill`.", False),
    ("The actor is dead because its node has died.", False),
    ("The actor is dead because its owner has died.", False),
])  # fmt: skip
def test_only_a_worker_that_died_by_itself_casts_suspicion_on_its_rows(message: str, by_itself: bool) -> None:
    error = Exception(f"The actor died unexpectedly before finishing this task.\n\tpid: 1\n{message}")
    assert WorkerDiedError.of(error).by_itself == by_itself


class Vllm:
    """As much of AsyncLLM as a worker uses; a row's first token selects its finish_reason."""

    async def generate(self, prompt: Any, params: Any, request: str, lora_request: Any) -> AsyncIterator[Any]:
        reason = ("stop", "error", "abort")[prompt["prompt_token_ids"][0]]
        yield SimpleNamespace(
            outputs=[
                SimpleNamespace(text="half an", token_ids=[1], finish_reason=reason, cumulative_logprob=None)
            ],
            prompt_token_ids=prompt["prompt_token_ids"],
            num_cached_tokens=0,
        )


def worker_of(engine: Vllm) -> Any:
    worker: Any = worker_module.VllmWorker.__new__(worker_module.VllmWorker)
    worker._engine, worker._dead_error, worker._streams = engine, ConnectionError, RowStreams()
    worker._reasoning, worker._shows_control_tokens = None, False
    worker._adapters, worker._repetition = WorkerAdapters(()), RepetitionSample()
    return worker


def generate(monkeypatch: pytest.MonkeyPatch, *tokens: int) -> list[dict[str, Any]]:
    monkeypatch.setattr(
        worker_module, "_parse_request", lambda *_: (worker_module._Generate(cast("Any", None), None), None)
    )
    worker = worker_of(Vllm())
    n = len(tokens)
    rows = pa.table({"row": range(n), "tokens": [[t] for t in tokens], "params": ["{}"] * n})

    async def run() -> list[dict[str, Any]]:
        return [row async for group in worker.generate(rows) for row in group.to_pylist()]

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


def test_vllm_still_waits_by_the_function_that_the_cpu_executor_replaces() -> None:
    [folder] = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr]
    text = Path(folder, "distributed", "device_communicators", "shm_broadcast.py").read_text()
    assert re.search(r"^from vllm.distributed.utils import .*\bsched_yield$", text, re.MULTILINE)
    assert re.search(r"^ +sched_yield\(\)$", text, re.MULTILINE)
