"""The streaming pipeline: missing rows -> requests, by Ray Data -> engine -> answers -> the node's fragment
writer. Engines with feeders get the requests' blocks through these (`feeder_pool`), others the dataset. Small
slices do without it (`slice_process`).

Only the row id and the columns that the request needs enter it: Ray Data LLM carries rows as Python dicts,
which changes or breaks many Arrow types. The driver sees counts, never answers. Memory is bounded by the work
in flight.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import ROW_ID_FIELDS
from airflow_provider_raydatallm.processor.engines.base import AnswerSink, Engine
from airflow_provider_raydatallm.processor.inference.feeder_pool import FeederPool
from airflow_provider_raydatallm.processor.inference.fragment_writers import RowWriter
from airflow_provider_raydatallm.processor.metrics.meter import summarize_group
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from airflow_provider_raydatallm.processor.request.requests import RequestReader
from airflow_provider_raydatallm.processor.sizing.sizes import light_tasks, read_tasks
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from airflow_provider_raydatallm.processor.store.spans import Spans

if TYPE_CHECKING:
    import ray.data

#: Options of `map_batches` that pass whole blocks.
_BLOCKS: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}


class RequestStage:
    """Reads units and yields their requests; rows without a request go to the writers at once."""

    def __init__(self, reader: RequestReader, writer: RowWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._run = uuid.uuid4().hex

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        indices = batch.column("index").to_pylist()
        is_retry = self._writer.begin_task(f"{self._run} {indices[0]}")
        self._reader.check_ahead(indices, is_retry=is_retry)
        for item in batch.to_pylist():
            yield from self.read(item["index"], np.frombuffer(item["spans"], np.int32).reshape(-1, 2))

    def read(self, index: int, spans: Spans) -> Iterator[pa.Table]:
        for requests, failed in self._reader(index, spans):
            self._writer.add(None, failed, None)
            yield requests


class WriterSink:
    """Parses answers and hands them to a writer.

    :param tasks: at once, for engines whose answers are a dataset.
    """

    def __init__(self, parser: AnswerParser, writer: RowWriter, tasks: int = 1) -> None:
        self._parser = parser
        self._writer = writer
        self._tasks = tasks

    def __call__(self, answers: pa.Table) -> pa.Table:
        rows, failed = self._parser(answers)
        self._writer.add(rows, failed, summarize_group(answers, rows, failed))
        invalid = set(_row_ids(failed.filter(failed.column("problem").is_valid())))
        indices = [i for i, row in enumerate(_row_ids(answers)) if row in invalid] if invalid else []
        return pa.table({"rows": [answers.num_rows], "invalid": pa.array([indices], pa.list_(pa.int64()))})

    def record_death(self, rows: pa.Table) -> None:
        self._writer.add_died(rows)

    def deliver_blocks(self, answers: ray.data.Dataset) -> ray.data.Dataset:
        from ray.data import TaskPoolStrategy

        return answers.map_batches(self.__call__, compute=TaskPoolStrategy(self._tasks), **_BLOCKS)


def _row_ids(rows: pa.Table) -> Iterator[tuple[int, int]]:
    return zip(*(rows.column(field.name).to_pylist() for field in ROW_ID_FIELDS), strict=True)


def run_inference(
    missing: MissingRows,
    reader: RequestReader,
    engine: Engine,
    parser: AnswerParser,
    writer: RowWriter,
    on_empty: Callable[[str], None],
) -> Exception | None:
    """Answers the missing rows and hands them to the writers. Returns the death of a feeder, if there was
    one: the rows that it held are missing still.

    :param on_empty: called with the id of each node that adds no row any more, as soon as that is known.
    """
    import ray
    from ray.data import DataContext, TaskPoolStrategy

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Errors of a stage reach the driver with their type and kind, not only as text.
    context.raise_original_map_exception = True
    logging.getLogger("ray.data").setLevel(logging.WARNING)

    cpus = ray.cluster_resources().get("CPU", 1)
    tasks = read_tasks(len(missing), cpus)
    items = [{"index": index, "spans": spans.tobytes()} for index, spans in missing]
    requests = ray.data.from_items(items, override_num_blocks=tasks).map_batches(
        RequestStage(reader, writer).__call__,
        compute=TaskPoolStrategy(min(tasks, light_tasks(cpus))),
        **_BLOCKS,
    )
    # A stage takes and releases whole blocks: one batch, unless the job sets blocks.
    requests = requests.repartition(target_num_rows_per_block=engine.block_rows)
    deliver = WriterSink(parser, writer, light_tasks(cpus))
    if engine.feeders is not None:
        return _feed(requests, engine, engine.feeders, deliver, on_empty)
    for _ in engine.answer_requests(requests, deliver).iter_batches(prefetch_batches=0, **_BLOCKS):
        pass
    return None


def _feed(
    requests: ray.data.Dataset,
    engine: Engine,
    feeders: tuple[int, int],
    deliver: AnswerSink,
    on_empty: Callable[[str], None],
) -> Exception | None:
    """As `run_inference`."""
    with FeederPool(engine.job, engine.start_for_feeders(), deliver, feeders) as pool:
        bundles = iter(requests.iter_internal_ref_bundles())
        try:
            while (bundle := next(bundles, None)) is not None:
                for block in bundle.block_refs:
                    pool.hand_in(block)
                del bundle
        finally:
            del bundles  # which ends the reading
        pool.drain(on_empty)
        return pool.death
