"""Runs slices through the real path (feeders, dedup, writers, Ray Data) with workers of `paced_worker`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow_provider_raydatallm.contract.result.report import Report
from tests.support.slice_jobs import spec

_ROW_GROUP = 5_000


class Finished(NamedTuple):
    """Rows that were finished at a time, in epoch seconds."""

    at: float
    rows: int


def write_rows(folder: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the path of a new Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = f"{folder}/{uuid.uuid4().hex[:6]}.parquet"
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), table, row_group_size=_ROW_GROUP)
    return table


def run_real_slice(
    folder: str,
    table: str,
    engine: str,
    sampling: Mapping[str, Any],
    *,
    workers: int = 1,
    config: Mapping[str, Any] | None = None,
) -> tuple[Report, list[Finished]]:
    """Publishes a slice, on the Ray that this process is connected to.

    :param folder: with the model's folder `model`; the output goes there, too.
    :param table: rows with `text`, which ends the prompt, and what `sampling` refers to.
    :param engine: `package.module:Class`.
    :param config: of the workers (`paced_worker`).
    """
    from airflow_provider_raydatallm.processor import version_build
    from airflow_provider_raydatallm.processor.slice_run import run_slice
    from benchmarks.prompts import ASK

    progress: list[Finished] = []

    class RecordingMeter(version_build.Meter):
        def add(self, update: Any) -> None:
            super().add(update)
            progress.append(Finished(time.time(), self.finished_rows))

    job = spec(
        slice_key="2026-01-31",
        input_path=table,
        output_path=table.removesuffix(".parquet"),
        model_source=f"{folder}/model",
        prompt=ASK + "{text}",
        engine=engine,
        engine__workers=workers,
        sampling_params=dict(sampling),
        engine__kwargs={"max_model_len": 4096, "additional_config": dict(config or {})},
    )
    recorded = version_build.Meter
    setattr(version_build, "Meter", RecordingMeter)  # noqa: B010
    try:
        report = run_slice(job, lambda progress: None)
    finally:
        setattr(version_build, "Meter", recorded)  # noqa: B010
    assert not report.counts.quarantined, report
    return report, progress
