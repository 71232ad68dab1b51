"""Whole slices in this process, whose rows name themselves: an answer shows whose it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.reader import published_dataset
from tests.support.in_process import InProcess


class Killed(Exception): ...


def kill_after(rows: int) -> InProcess:
    """A cluster that dies when so many rows are answered."""
    cluster = InProcess(batch=4)

    def die(batch: pa.Table) -> None:
        if cluster.answered >= rows:
            raise Killed

    cluster.before_batch = die
    return cluster


def write_rows(path: Path, names: list[str], **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"name": names, **columns}), path)


def published(job: SliceJob) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = published_dataset(job.slice_path).to_table().to_pylist()
    return rows


def assert_own_answers(job: SliceJob) -> None:
    rows = published(job)
    assert rows
    assert [row["answer"] for row in rows] == [row["name"] for row in rows]
