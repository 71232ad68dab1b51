"""Runs a slice in this process: the store's own code, from plan to publish, with the stub engine and without
Ray."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan, InferenceRun, OnUpdate
from airflow_provider_raydatallm.processor.metrics.meter import WriterUpdate, summarize_group
from airflow_provider_raydatallm.processor.sizing.checks import Finding
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.processor.store.fragments import FragmentWriter
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from tests.support import stub_engine
from tests.support.arguments import merged
from tests.support.slice_jobs import changed as changed

STUB = "tests.support.stub_engine:StubEngine"


class InProcess:
    """A cluster in this process. `answered` counts the rows that the engine got. `flush_every`: batches in a
    fragment. `answer`: the engine."""

    def __init__(
        self, *, batch: int = 10, flush_every: int = 1,
        before_batch: Callable[[pa.Table], None] = lambda batch: None,
        answer: Callable[[pa.Table], pa.Table] = stub_engine.answer,
    ) -> None:  # fmt: skip
        self.answer = answer
        self.batch = batch
        self.flush_every = flush_every
        self.before_batch = before_batch
        self.answered = 0

    def preflight(self, inference: InferencePlan, missing: MissingRows) -> list[Finding]:
        return []

    def run_inference(self, run: InferenceRun, on_update: OnUpdate) -> None:
        next_run: InferenceRun | None = run
        while next_run is not None:
            self._answer_run(next_run, on_update)
            next_run = next_run.next_run()

    def _answer_run(self, run: InferenceRun, on_update: OnUpdate) -> None:
        inference = run.inference
        writer = FragmentWriter(run.url, run.folder, [u.id for u in inference.plan.units], run.epoch)
        parser, reader = run.parser, run.reader
        batches = 0
        try:
            reader.check_ahead(index for index, _ in run.missing)
            for index, spans in run.missing:
                for requests, bad in reader(index, spans):
                    writer.add("failed", bad)
                    update = WriterUpdate(failed=bad.num_rows)
                    on_update(update.without_rows() if run.is_probe else update)
                    for start in range(0, requests.num_rows, self.batch):
                        batch = requests.slice(start, self.batch)
                        self.before_batch(batch)
                        self.answered += batch.num_rows
                        answers = self.answer(batch)
                        rows, bad = parser(answers)
                        writer.add("rows", rows)
                        writer.add("failed", bad)
                        batches += 1
                        if batches % self.flush_every == 0:
                            writer.flush()
                        update = WriterUpdate([summarize_group(answers, rows, bad)])
                        on_update(update.without_rows() if run.is_probe else update)
        finally:
            writer.close()

    def run_tasks(
        self, function: Callable[[Any], Any], inputs: Iterable[Any], timeout: float
    ) -> Iterable[Any]:
        return [function(one) for one in inputs]


def run_in_process(job: SliceJob, cluster: InProcess | None = None) -> Report:
    return run_slice(job, lambda progress: None, cluster or InProcess())


def answer_fixed(batch: pa.Table, bad: str = "fail", good: str = "fine") -> pa.Table:
    """The stub engine's answers to requests whose bad text is replaced."""
    return answer_instead(batch, [t.replace(bad, good) for t in batch.column("__request").to_pylist()])


def answer_instead(batch: pa.Table, requests: Sequence[str | dict[str, Any]]) -> pa.Table:
    """The stub engine's answers to other requests than the rows'."""
    texts = [request if isinstance(request, str) else json.dumps(request) for request in requests]
    index = batch.schema.get_field_index("__request")
    return stub_engine.answer(batch.set_column(index, "__request", pa.array(texts)))


def answer_with(**values: Any) -> Callable[[pa.Table], pa.Table]:
    """The stub engine, with these values in columns of all its answers."""

    def answer(batch: pa.Table) -> pa.Table:
        answers = stub_engine.answer(batch)
        for name, value in values.items():
            field = answers.schema.field(name)
            column = pa.array([value] * answers.num_rows, field.type)
            answers = answers.set_column(answers.schema.get_field_index(name), field, column)
        return answers

    return answer


def numbers_of(text: str, size: int) -> list[float]:
    """Numbers of its own for each text."""
    return [(1 + (zlib.crc32(f"{i}{text}".encode()) & 255)) / 1024 for i in range(size)]


def answer_numbers(batch: pa.Table, *, size: int) -> pa.Table:
    """The stub engine, as one whose answers are numbers."""
    answers = stub_engine.answer(batch)
    texts = answers.column("text").to_pylist()
    numbers = [None if text is None else numbers_of(text, size) for text in texts]
    for name, values in [("numbers", numbers), ("text", [None] * len(texts))]:
        index = answers.schema.get_field_index(name)
        field = answers.schema.field(index)
        answers = answers.set_column(index, field, pa.array(values, field.type))
    return answers


def job_of(**given: Any) -> SliceJob:
    least = {"slice_key": "2026-01-31", "model_source": "m/m", "engine": STUB}
    if given.get("preprocess") is None:
        least["prompt"] = "{name}"
    return SliceJob.model_validate(merged(least, **given))
