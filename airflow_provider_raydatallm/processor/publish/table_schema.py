"""Checks a table's columns before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.listing import folder_column
from airflow_provider_raydatallm.processor.input.plan import Plan


def check_columns(job: SliceJob, plan: Plan, fields: Sequence[pa.Field]) -> None:
    """:raises SliceError: when an answer column clashes with another column, or Parquet cannot hold one."""
    names = [f.name for f in fields]
    if taken := [n for n in names if n in plan.columns]:
        raise SliceError(
            f"the answer column {taken[0]!r} is also a column of the input: choose another output_column",
            kind="input",
        )
    if (folder := folder_column(job.slice_path)) in names:
        raise SliceError(
            f"the answer column {folder!r} is also the slice folder's: choose another output_column",
            kind="input",
        )
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([*plan.schema, *fields])).close()
    except pa.ArrowException as e:
        raise SliceError(
            f"the slice's columns cannot be written as Parquet: {e}. Leave them out with columns=",
            kind="input",
        ) from e
