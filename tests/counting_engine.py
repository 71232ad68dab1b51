"""vLLM as the provider feeds it, noting how many rows each call to a worker brings: `<output>.calls` has a
line each. It travels with the job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.vllm import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm_worker import VllmWorker


class _CountingWorker(VllmWorker):
    def __init__(self, arguments: dict[str, Any]) -> None:
        self._calls = arguments.pop("calls")
        super().__init__(arguments)

    async def answer(self, batch: pa.Table) -> AsyncIterator[pa.Table]:
        with open(self._calls, "a") as calls:
            calls.write(f"{batch.num_rows}\n")
        async for group in super().answer(batch):
            yield group


class CountingEngine(VllmEngine):
    worker = _CountingWorker

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "calls": f"{self.job.output_path}.calls"}
