"""The streaming pipeline on Ray Data: units -> requests -> engine -> answers.

Only the row id and the columns that the request needs enter it: Ray Data LLM carries rows as Python dicts,
which changes or breaks many Arrow types. Memory is bounded by the work in flight.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.answers import AnswerShape
from airflow_provider_raydatallm.processor.engines.base import ROW_ID_FIELDS, Engine
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.plan import Plan
from airflow_provider_raydatallm.processor.prompt import RequestBuilder, as_text
from airflow_provider_raydatallm.processor.sizing import light_tasks, read_tasks


class MakeRequests:
    """Reads units and yields their rows' requests."""

    def __init__(self, plan: Plan, builder: RequestBuilder, *, carry_row: bool) -> None:
        self._plan = plan
        self._builder = builder
        self._carry_row = carry_row
        self._schema = pa.schema(
            [*ROW_ID_FIELDS, pa.field("__request", pa.string())]
            + [pa.field("__row", pa.string())] * carry_row
        )

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        for index in batch.column("index").to_pylist():
            offset = 0
            for table in self._plan.read(self._plan.units[index], self._builder.columns):
                yield self._requests(index, offset, table)
                offset += table.num_rows

    def _requests(self, index: int, offset: int, table: pa.Table) -> pa.Table:
        rows = table.to_pylist() if table.num_columns else [{}] * table.num_rows
        columns: list[Any] = [[index] * len(rows), list(range(offset, offset + len(rows)))]
        columns.append(
            [json.dumps(self._build(index, offset + i, row), default=as_text) for i, row in enumerate(rows)]
        )
        if self._carry_row:
            columns.append([json.dumps(row, default=as_text) for row in rows])
        return pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)], schema=self._schema
        )

    def _build(self, index: int, offset: int, row: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._builder.build(row)
        except SliceError:
            raise
        except Exception as e:
            where = self._plan.locate(index, offset)
            raise SliceError(f"preprocess failed on {where}: {type(e).__name__}: {e}") from e


def answered(
    plan: Plan, builder: RequestBuilder, engine: Engine, shape: AnswerShape, *, carry_row: bool
) -> Iterator[pa.Table]:
    """Run the pipeline and yield tables of row ids, published columns and measures as batches leave the
    engine."""
    import ray
    from ray.data import DataContext, TaskPoolStrategy

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)

    cpus = ray.cluster_resources().get("CPU", 1)
    tasks = read_tasks(len(plan.units), cpus)
    light: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    units = ray.data.from_items([{"index": i} for i in range(len(plan.units))], override_num_blocks=tasks)
    requests = units.map_batches(
        MakeRequests(plan, builder, carry_row=carry_row).__call__,
        compute=TaskPoolStrategy(min(tasks, light_tasks(cpus))),
        **light,
    )
    # The block is the grain at which a stage takes and releases rows, so a block is one batch of the engine.
    requests = requests.repartition(target_num_rows_per_block=engine.batch_size)
    answers = engine.answer(requests).map_batches(
        shape.__call__, compute=TaskPoolStrategy(light_tasks(cpus)), **light
    )
    for block in answers.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        if block.num_rows:
            yield block
