"""Rows through a feeder and its client, without Ray."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.feeder import FeederSetup
from airflow_provider_raydatallm.processor.engines.feeding.row_budget import RowBudget
from airflow_provider_raydatallm.processor.engines.http.feeder import HttpFeeder, NoWorkers, open_api
from tests.support.endpoint import Endpoint
from tests.support.in_process import job_of

KEY = "sk-0123456789"


class Sink:
    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def __call__(self, answers: pa.Table) -> pa.Table:
        with self._lock:
            self.answers += answers.to_pylist()
        return pa.table({"rows": [answers.num_rows], "invalid": [[]]})

    @property
    def by_row(self) -> dict[int, dict[str, Any]]:
        by_row = {answer["__offset"]: answer for answer in self.answers}
        assert len(by_row) == len(self.answers)  # none twice
        return by_row


def feed(
    served: Endpoint,
    texts: list[str],
    sink: Sink | None = None,
    vector_size: int | None = None,
    **fields: Any,
) -> tuple[Sink, list[int]]:
    """Returns what was delivered, and the rows that are left."""
    paths = {"input_path": "in", "output_path": "out"}
    job = job_of(engine="http", engine__url=served.url, **paths, **fields)
    sink = sink or Sink()
    unused: Any = None
    setup = FeederSetup(
        job, partial(open_api, job), NoWorkers, sink, RowBudget(1, 1),  # type: ignore[arg-type]
        window_rows=1, active_feeders=unused, suspect_keys=unused,
    )  # fmt: skip
    feeder = HttpFeeder(setup, vector_size=vector_size)
    requests = [
        json.dumps({"messages": [{"role": "user", "content": t}], "sampling_params": job.task.sampling})
        for t in texts
    ]
    ids = {
        "__unit": pa.array([0] * len(texts), pa.int32()),
        "__offset": pa.array(range(len(texts)), pa.int64()),
    }
    try:
        feeder(pa.table({**ids, "__request": requests}))
        feeder.drain()
    except SliceError as e:
        e.add_note(json.dumps(sorted(sink.by_row)))
        raise
    return sink, sorted(set(range(len(texts))) - sink.by_row.keys())
