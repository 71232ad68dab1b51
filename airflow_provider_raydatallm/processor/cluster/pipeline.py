"""The streaming pipeline on Ray Data: missing rows -> requests -> engine -> answers -> the node's fragment
writer.

Only the row id and the columns that the request needs enter it: Ray Data LLM carries rows as Python dicts,
which changes or breaks many Arrow types. Answers do not come back to the driver, which sees counts only.
Memory is bounded by the work in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.cluster.fragment_writers import FragmentWriters
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.metrics.meter import summarize_group
from airflow_provider_raydatallm.processor.request.answer_shape import AnswerParser
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.sizing.sizes import light_tasks, read_tasks
from airflow_provider_raydatallm.processor.store.ledger import MissingRows

if TYPE_CHECKING:
    import ray.data

#: Blocks as they are.
_BLOCKS: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}


class _RequestReader:
    def __init__(self, make_requests: RequestReader, writers: FragmentWriters) -> None:
        self._make_requests = make_requests
        self._writers = writers

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        for item in batch.to_pylist():
            for requests, failed in self._make_requests(item["index"], item["spans"]):
                self._writers.add(None, failed, None)
                yield requests


class _WriterSink:
    """Shapes answers and hands them to the node's writer."""

    def __init__(self, shape: AnswerParser, writers: FragmentWriters, tasks: int) -> None:
        self._shape = shape
        self._writers = writers
        self._tasks = tasks

    def __call__(self, answers: pa.Table) -> pa.Table:
        rows, failed = self._shape(answers)
        self._writers.add(rows, failed, summarize_group(answers, rows, failed))
        return pa.table({"rows": [answers.num_rows]})

    def deliver_blocks(self, answers: ray.data.Dataset) -> ray.data.Dataset:
        from ray.data import TaskPoolStrategy

        return answers.map_batches(self.__call__, compute=TaskPoolStrategy(self._tasks), **_BLOCKS)


def run_inference(
    plan: Plan,
    work: MissingRows,
    builder: RequestBuilder,
    engine: Engine,
    shape: AnswerParser,
    writers: FragmentWriters,
) -> None:
    """Have the missing rows answered and taken by the writers."""
    import ray
    from ray.data import DataContext, TaskPoolStrategy

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # What a step raises comes back as it is, with its kind, and not only as text.
    context.raise_original_map_exception = True
    logging.getLogger("ray.data").setLevel(logging.WARNING)

    cpus = ray.cluster_resources().get("CPU", 1)
    tasks = read_tasks(len(work), cpus)
    units = ray.data.from_items([{"index": i, "spans": list(s)} for i, s in work], override_num_blocks=tasks)
    make_requests = RequestReader(plan, builder, carry_row=shape.needs_row)
    requests = units.map_batches(
        _RequestReader(make_requests, writers).__call__,
        compute=TaskPoolStrategy(min(tasks, light_tasks(cpus))),
        **_BLOCKS,
    )
    # The block is the grain at which a stage takes and releases rows: one batch, unless asked otherwise.
    requests = requests.repartition(target_num_rows_per_block=engine.block_rows)
    delivered = engine.answer_requests(requests, _WriterSink(shape, writers, light_tasks(cpus)))
    for _ in delivered.iter_batches(prefetch_batches=0, **_BLOCKS):
        pass
