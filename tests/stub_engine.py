"""An engine that answers at once without a model, inside real Ray Data: for tests and benchmarks of what
surrounds the engine.

The answer is the last message's text (or the first choice), so that a test can tell whose answer a row has.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.base import ANSWER_FIELDS, Engine, Resources

if TYPE_CHECKING:
    import ray.data


class StubEngine(Engine):
    @property
    def resources(self) -> Resources:
        return Resources(cpus=1 + int(self.job.engine_kwargs.get("ask_cpus", 0)), gpus=0, breakdown="a stub")

    @property
    def batch_size(self) -> int:
        return self.job.batch_size or 128

    def answer(self, requests: ray.data.Dataset) -> ray.data.Dataset:
        from ray.data import TaskPoolStrategy

        return requests.map_batches(
            _answer, batch_size=self.batch_size, batch_format="pyarrow", compute=TaskPoolStrategy(1)
        )


def _answer(batch: pa.Table) -> pa.Table:
    texts, began = [], time.time()
    for text in batch.column("__request").to_pylist():
        request = json.loads(text)
        choices = request["sampling_params"].get("structured_outputs", {}).get("choice")
        texts.append(choices[0] if choices else request["messages"][-1]["content"])
    n = batch.num_rows
    values = [texts, [7] * n, [3] * n, [time.time() - began] * n, [time.time()] * n]
    answers = [pa.array(v, f.type) for v, f in zip(values, ANSWER_FIELDS, strict=True)]
    kept = [c for c in batch.schema.names if c != "__request"]
    return pa.table(
        [*[batch.column(c) for c in kept], *answers], names=[*kept, *[f.name for f in ANSWER_FIELDS]]
    )
