"""Engines that write down when rows leave them: a stub of a real engine's pace, and Ray Data LLM itself.

Each group of rows is one line, `epoch seconds, rows`, in the file `<output path>.left`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, Engine
from airflow_provider_raydatallm.processor.engines.ray_data_llm import RayDataLLM
from airflow_provider_raydatallm.processor.sizing.facts import Resources
from tests.support.stub_engine import answer

if TYPE_CHECKING:
    import ray.data


class Departures:
    """Rows that left an engine: appends to a job's file from any process, and reads it."""

    def __init__(self, output_path: str) -> None:
        self.path = f"{output_path}.left"

    def note(self, rows: int) -> None:
        with open(self.path, "a") as f:  # one small write is one line, whoever else writes
            f.write(f"{time.time()} {rows}\n")

    def __call__(self, batch: pa.Table) -> pa.Table:
        self.note(batch.num_rows)
        return batch

    def all(self) -> list[tuple[float, int]]:
        try:
            with open(self.path) as f:
                lines = [line.split() for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [(float(when), int(rows)) for when, rows in lines]


class Paced(Engine):
    """One actor that answers a batch at a time. `engine_kwargs`: `seconds_per_row`, and `busy`: whether it
    spends them computing, as an engine on CPUs does, or asleep, as one does whose GPU computes."""

    @property
    def resources(self) -> Resources:
        return Resources(cpus=3, gpus=0, breakdown="a stub")

    @property
    def batch_size(self) -> int:
        return self.job.batch_size or 128

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        from ray.data import ActorPoolStrategy

        answers = requests.map_batches(
            _PacedActor,
            fn_constructor_args=[self.job.output_path, self.job.engine_kwargs],
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


class CountedLLM(RayDataLLM):
    """Ray Data LLM with vLLM."""

    def __init__(self, job: SliceJob, rows: int) -> None:
        super().__init__(job, rows)
        self._departures = Departures(job.output_path)

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        return super().answer_requests(requests, _Counted(deliver, self._departures))


class _Counted:
    def __init__(self, deliver: AnswerSink, departures: Departures) -> None:
        self._deliver = deliver
        self._departures = departures

    def __call__(self, answers: pa.Table) -> pa.Table:
        return self._deliver(self._departures(answers))

    def deliver_blocks(self, answers: ray.data.Dataset) -> ray.data.Dataset:
        return self._deliver.deliver_blocks(
            answers.map_batches(self._departures.__call__, batch_size=None, batch_format="pyarrow")
        )
