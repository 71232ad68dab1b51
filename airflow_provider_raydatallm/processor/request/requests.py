"""requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.columns import ROW_ID_FIELDS, failed_table
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.request.prompt import RequestBuilder, as_text
from airflow_provider_raydatallm.processor.store.ledger import Span


class RequestReader:
    """Reads units and yields the requests of their missing rows. Rows without a request have failed."""

    def __init__(self, plan: Plan, builder: RequestBuilder, *, carry_row: bool) -> None:
        self._plan = plan
        self._builder = builder
        self._carry_row = carry_row
        self._schema = pa.schema(
            [*ROW_ID_FIELDS, pa.field("__request", pa.string())]
            + [pa.field("__row", pa.string())] * carry_row
        )

    def __call__(self, index: int, spans: Sequence[Span]) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Tables of requests and of failed rows."""
        offset, last = 0, spans[-1][1]
        starts, stops = np.array([s for s, _ in spans]), np.array([s for _, s in spans])
        for table in self._plan.read(self._plan.units[index], self._builder.columns):
            here = np.arange(offset, offset + table.num_rows)
            at = np.searchsorted(starts, here, side="right") - 1
            wanted = here[(at >= 0) & (here < stops[at])]
            if len(wanted):
                rows = table if len(wanted) == len(here) else table.take(pa.array(wanted - offset))
                yield self._requests(index, wanted, rows, len(wanted))
            offset += table.num_rows
            if offset >= last:
                return

    def _requests(
        self, index: int, offsets: np.ndarray, table: pa.Table, count: int
    ) -> tuple[pa.Table, pa.Table]:
        rows = table.to_pylist() if table.num_columns else [{}] * count
        requests: list[str | None] = []
        failures: list[tuple[int, str, str]] = []
        for i, row in enumerate(rows):
            try:
                requests.append(json.dumps(self._builder.build(row), default=as_text))
            except Exception as e:
                requests.append(None)
                kind = "InvalidRequest" if isinstance(e, SliceError) else type(e).__name__
                failures.append((i, kind, str(e) if isinstance(e, SliceError) else f"preprocess: {e}"))
        columns: list[Any] = [[index] * count, offsets, requests]
        if self._carry_row:
            columns.append([json.dumps(row, default=as_text) for row in rows])
        made = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)], schema=self._schema
        )
        return made.filter(made.column("__request").is_valid()), failed_table(made, failures)
