"""Engines whose workers kill their own process before they are ready, as a native library does that does
not find what it needs. Each that starts adds a line to the file `engine.kwargs["starts"]`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from stub_engine import StubEngine

from airflow_provider_raydatallm.processor.engines.base import AnswerSink

if TYPE_CHECKING:
    import ray.data


class DyingEngine(StubEngine):
    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        answers = requests.map_batches(
            _Worker, fn_constructor_args=(self.job.engine.arguments["starts"],), batch_format="pyarrow",
            batch_size=self.batch_size, concurrency=(1, 1), num_cpus=1,
        )  # fmt: skip
        return deliver.deliver_blocks(answers)


class DyingTasksEngine(StubEngine):
    """Its workers are tasks."""

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        answers = requests.map_batches(
            _answer, fn_args=(self.job.engine.arguments["starts"],), batch_format="pyarrow",
            batch_size=self.batch_size, num_cpus=1,
        )  # fmt: skip
        return deliver.deliver_blocks(answers)


def _answer(batch: pa.Table, starts: str) -> pa.Table:
    _die(starts)
    return batch


def _die(starts: str) -> None:
    with Path(starts).open("a") as file:
        file.write(f"{os.getpid()}\n")
    print("libmissing.so: cannot open shared object file", flush=True)
    os._exit(1)


class _Worker:
    def __init__(self, starts: str) -> None:
        _die(starts)

    def __call__(self, batch: pa.Table) -> pa.Table:
        raise NotImplementedError
