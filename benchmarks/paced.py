"""A stub engine with a real engine's pace, which logs when rows leave it, and a bare stub.

Each group of rows is one line, `epoch seconds, rows`, in the file `<output path>.left`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.base import AnswerSink, Engine
from airflow_provider_raydatallm.processor.sizing.facts import Resources
from tests.support.stub_engine import answer

if TYPE_CHECKING:
    import ray.data


class Departures:
    """Log of the rows that left an engine: any process appends to the job's file."""

    def __init__(self, output_path: str) -> None:
        self.path = f"{output_path}.left"

    def append(self, rows: int) -> None:
        with open(self.path, "a") as f:  # a small append is atomic
            f.write(f"{time.time()} {rows}\n")

    def __call__(self, batch: pa.Table) -> pa.Table:
        self.append(batch.num_rows)
        return batch

    def read(self) -> list[tuple[float, int]]:
        try:
            with open(self.path) as f:
                lines = [line.split() for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [(float(when), int(rows)) for when, rows in lines]


class Paced(Engine):
    """One actor that answers one batch at a time. `engine.kwargs`: `seconds_per_row`, and `busy`: whether it
    computes for that time, like an engine on CPUs, or sleeps, like an engine whose GPU computes."""

    @property
    def resources(self) -> Resources:
        return Resources(cpus=3, gpus=0, breakdown="a stub")

    @property
    def batch_size(self) -> int:
        return self.job.engine.batch_size or 128

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        from ray.data import ActorPoolStrategy

        answers = requests.map_batches(
            _PacedActor,
            fn_constructor_args=[self.job.output_path, self.job.engine.arguments],
            batch_size=self.batch_size,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=1),
            num_cpus=1,
        )
        return deliver.deliver_blocks(answers)


class _PacedActor:
    def __init__(self, output_path: str, kwargs: dict[str, Any]) -> None:
        self._departures = Departures(output_path)
        self._seconds_per_row = kwargs["seconds_per_row"]
        self._busy = kwargs["busy"]

    def __call__(self, batch: pa.Table) -> pa.Table:
        clock = time.thread_time if self._busy else time.monotonic
        end = clock() + self._seconds_per_row * batch.num_rows
        answers = answer(batch)
        if not self._busy:
            time.sleep(max(0.0, end - clock()))
        while clock() < end:
            pass
        return self._departures(answers)


def answer_names(batch: pa.Table) -> pa.Table:
    """Answers a table with a column `name`, without the provider."""
    requests = [
        json.dumps({"messages": [{"role": "user", "content": f"Who is {name}?"}], "sampling_params": {}})
        for name in batch.column("name").to_pylist()
    ]
    return answer(batch.append_column("__request", pa.array(requests)))
