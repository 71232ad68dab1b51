"""The provider's own vLLM engine with workers that run no model: the feeders, Ray and all that is around the
engine are real. A row takes its worker `max_tokens` milliseconds, one row after the other.

`<output>.workers` has the pid of each worker that started, a line each.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.worker.streams import RowStreams
from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker

#: Of vLLM 0.29, shortened.
_LAST_WORDS = """\
(EngineCore pid=7) ERROR 11-22 02:49:51 [core.py:1376] EngineCore encountered a fatal error.
(EngineCore pid=7) ERROR 11-22 02:49:51 [core.py:1376] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-22 02:49:51 [core.py:1376]     raise RuntimeError(
(EngineCore pid=7) ERROR 11-22 02:49:51 [core.py:1376] RuntimeError: Worker failed with error \
'CUDA error: an illegal memory access was encountered
the engine died: EngineCore encountered an issue. See stack trace (above) for the root cause."""


#: Tokens of rows that kill their engine.
DEADLY = 666
#: Tokens of rows that take long.
LONG = 999


class _StubWorker(VllmWorker):
    def __init__(self, journal: str) -> None:
        with open(journal, "a") as started:
            started.write(f"{os.getpid()}\n")
        self._turn = asyncio.Lock()
        self._streams = RowStreams()
        self.startup_seconds = {}

    async def is_alive(self) -> bool:
        return True

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        made = json.loads(params)["max_tokens"]
        async with self._turn:
            began = time.time()
            await asyncio.sleep(made / 1000)
        now = time.time()
        return {
            "text": "a", "finish_reason": "stop", "input_tokens": len(tokens), "output_tokens": made,
            "cached_tokens": 0, "engine_seconds": now - began, "finished_at": now,
        }  # fmt: skip


class _LateWorker(_StubWorker):
    """Starts without end."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        while True:
            time.sleep(1)


class _BrokenWorker(_StubWorker):
    """Dies of its first row as vLLM does when its GPU fails."""

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        print(_LAST_WORDS, flush=True)
        os._exit(1)


class _MortalWorker(_StubWorker):
    """Dies of rows that ask for `DEADLY` tokens."""

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        if json.loads(params)["max_tokens"] == DEADLY:
            print(_LAST_WORDS, flush=True)
            os._exit(1)
        return await super()._generate_row(tokens, params, user)


class _CountingWorker(_StubWorker):
    """Adds the tokens that each row asks for to `<output>.asked`."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self._asked = journal.replace(".workers", ".asked")

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        answer = await super()._generate_row(tokens, params, user)
        with open(self._asked, "a") as asked:
            asked.write(f"{answer['output_tokens']}\n")
        return answer


class _HoldingWorker(_StubWorker):
    """Answers rows at once, but for those that ask for `LONG` tokens: when the file `<output>.gate` is there.
    Adds a line with the tokens of each row that comes to `<output>.admitted`, and of each that it answers to
    `<output>.answered`."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self._output = journal.removesuffix(".workers")

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        asked = json.loads(params)["max_tokens"]
        self._note("admitted", asked)
        while asked == LONG and not os.path.exists(f"{self._output}.gate"):
            await asyncio.sleep(0.05)
        answer = await super()._generate_row(tokens, json.dumps({"max_tokens": 1}), user)
        self._note("answered", asked)
        return {**answer, "output_tokens": asked}

    def _note(self, what: str, tokens: int) -> None:
        with open(f"{self._output}.{what}", "a") as lines:
            lines.write(f"{tokens}\n")


class _NotingWorker(_StubWorker):
    """Adds the name of its node to `<output>.begun` for each row that it begins. Answers none before a worker
    on another node has begun one, too."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self._begun = journal.replace(".workers", ".begun")

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        import ray

        with open(self._begun, "a") as begun:
            begun.write(f"{ray.get_runtime_context().get_node_id()}\n")
        while len(self._nodes()) < 2:
            await asyncio.sleep(0.05)
        return await super()._generate_row(tokens, params, user)

    def _nodes(self) -> set[str]:
        with open(self._begun) as begun:
            return set(begun.read().split())


class _PickyWorker(_StubWorker):
    """Can start once: `<output>.taken` says that it did."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        with open(journal.replace(".workers", ".taken"), "x"):
            pass


class StubWorkers(VllmEngine):
    worker = _StubWorker

    def _worker_arguments(self) -> Any:
        return f"{self.job.output_path}.workers"

    @property
    def is_ready(self) -> bool:
        """Feeders take longer to start than these workers do, and a stall is not to be counted meanwhile."""
        return False


class BrokenWorkers(StubWorkers):
    worker = _BrokenWorker


class MortalWorkers(StubWorkers):
    """With two feeders, as a GPU's."""

    worker = _MortalWorker

    @property
    def cpu_actors(self) -> tuple[int, int]:
        return (1, 1) if self._isolates else (2, 2)


class CountingWorkers(StubWorkers):
    worker = _CountingWorker


class HoldingWorkers(StubWorkers):
    """With two feeders, as a GPU's."""

    worker = _HoldingWorker

    @property
    def cpu_actors(self) -> tuple[int, int]:
        return (2, 2)


class NotingWorkers(StubWorkers):
    worker = _NotingWorker


class PickyWorkers(StubWorkers):
    worker = _PickyWorker


class WatchedWorkers(StubWorkers):
    """Their rows are asked elsewhere after 3 s of silence."""

    silent_after_s = 3.0


class LateWorkers(StubWorkers):
    worker = _LateWorker


class PatientWorkers(StubWorkers):
    """No stall is counted before the file `<output>.gate` is there."""

    def __init__(self, job: SliceJob, rows: int) -> None:
        from stub_engine import count_stalls_when

        super().__init__(job, rows)
        count_stalls_when(lambda: os.path.exists(f"{job.output_path}.gate"))
