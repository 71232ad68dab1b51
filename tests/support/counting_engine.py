"""vLLM as the provider feeds it, noting how many rows each call to a worker brings: `<output>.calls` has a
line each. While the file `<output>.hold` is there, rows that begin and ask for as many tokens as stand in it,
or more, do not come to their end. It travels with the job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker


class _CountingWorker(VllmWorker):
    def __init__(self, arguments: dict[str, Any]) -> None:
        output = arguments.pop("output")
        self._calls, self._hold = f"{output}.calls", Path(f"{output}.hold")
        super().__init__(arguments)

    async def generate(self, rows: pa.Table, feeder: str = "", user: str = "") -> AsyncIterator[pa.Table]:
        with open(self._calls, "a") as calls:
            calls.write(f"{rows.num_rows}\n")
        async for group in super().generate(rows, feeder, user):
            yield group

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        asked = json.loads(params)
        if self._hold.exists() and asked["max_tokens"] >= int(self._hold.read_text()):
            # What is left of the model's length: minutes.
            params = json.dumps({**asked, "max_tokens": None})
        return await super()._generate_row(tokens, params, user)


class CountingEngine(VllmEngine):
    worker = _CountingWorker

    def _worker_arguments(self) -> dict[str, Any]:
        return {**super()._worker_arguments(), "output": self.job.output_path}
