"""The provider's own vLLM engine with workers that run no model: one that has a GPU engine's pace, and one
that answers at once. Feeders, dedup, writers and Ray Data around them are real.

Neither vLLM nor a GPU is needed: the engine behaves as if vLLM's CPU build were installed. What the paced
worker needs travels in vLLM's argument `additional_config`: `pace`, the fields of `Pace`, and `speed`, its
seconds in a real second.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.vllm import engine_base
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.worker.streams import RowStreams
from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker
from benchmarks.gpu_pace import Pace, PacedBatching, PacedRow
from benchmarks.hidden_lengths import length_of

#: Rows leave up to so many real seconds late: a process cannot wake up at each step of a fast engine.
_WAKE_S = 0.005
_LONGEST_SLEEP_S = 0.5
#: If nobody looked at the clock for longer, it stood still: the process was stopped.
_STOPPED_S = 1.0


class NoOpWorker(VllmWorker):
    def __init__(self, arguments: dict[str, Any]) -> None:
        self.startup_seconds = {}
        self._streams = RowStreams()

    async def is_alive(self) -> bool:
        return True

    def kill_processes(self) -> None:
        """It has none."""

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        return _answer(len(tokens), length_of(params), time.time())


class PacedWorker(NoOpWorker):
    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        config = arguments["additional_config"]
        self._speed: float = config["speed"]
        self._batching = PacedBatching(Pace(**config["pace"]))
        self._done: dict[PacedRow, asyncio.Event] = {}
        self._virtual_s, self._seen = 0.0, time.monotonic()
        self._runs: asyncio.Task[None] | None = None

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        row, began = PacedRow(len(tokens), length_of(params)), time.time()
        done = self._done[row] = asyncio.Event()
        self._batching.add(row, self._clock())
        if self._runs is None or self._runs.done():
            self._runs = asyncio.create_task(self._run())
        await done.wait()
        return _answer(row.prompt, row.answer, began)

    async def _run(self) -> None:
        """Ends every step that is over, and sleeps until the next end, while there are rows."""
        while not self._batching.is_idle:
            now = self._clock()
            while not self._batching.is_idle and self._batching.next_end() <= now:
                for row in self._batching.end_step():
                    self._done.pop(row).set()
            if not self._batching.is_idle:
                seconds = (self._batching.next_end() - now) / self._speed
                await asyncio.sleep(min(max(seconds, _WAKE_S), _LONGEST_SLEEP_S))

    def _clock(self) -> float:
        """Virtual seconds since the start, without those in which this process was stopped."""
        now = time.monotonic()
        if now - self._seen < _STOPPED_S:
            self._virtual_s += (now - self._seen) * self._speed
        self._seen = now
        return self._virtual_s


def _answer(prompt: int, answer: int, began: float) -> dict[str, Any]:
    now = time.time()
    return {
        "text": "word " * answer, "finish_reason": "stop", "input_tokens": prompt, "output_tokens": answer,
        "cached_tokens": 0, "engine_seconds": now - began, "finished_at": now,
    }  # fmt: skip


class PacedEngine(VllmEngine):
    worker: type[VllmWorker] = PacedWorker

    def __init__(self, job: SliceJob, rows: int) -> None:
        setattr(engine_base, "vllm_is_cpu_build", lambda accelerator_type: True)  # noqa: B010
        super().__init__(job, rows)

    @property
    def cpu_actors(self) -> tuple[int, int]:
        """Two feeders for a worker, as with GPUs."""
        return 2 * self.workers[0], 2 * self.workers[1]


class NoOpEngine(PacedEngine):
    worker = NoOpWorker
