"""Which columns a table has: as its published slices show them, by a file's footer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.schema import plain_field
from airflow_provider_raydatallm.processor.storage.store import Store

#: Slices that are looked at, from the last key on: some may show no file.
_MOST_SLICES = 20


def table_columns(job: SliceJob) -> pa.Schema | None:
    """The columns of the job's table: those of the slice itself, if it is published, or else of the one with
    the last key. None when no slice is published."""
    if (own := _shown_columns(*_table_of(job))) is not None:
        return own
    return next((columns for _, columns in columns_elsewhere(job)), None)


def columns_elsewhere(job: SliceJob) -> Iterator[tuple[str, pa.Schema]]:
    """Yields the columns that other slices of the table show, with each one's folder; the last keys first."""
    if "{slice}" in job.output_path.rstrip("/").rpartition("/")[0]:
        return  # each slice is a table
    table, own = _table_of(job)
    others = [name for name in table.names() if name != own and not name.startswith(("_", "."))]
    for folder in sorted(others, reverse=True)[:_MOST_SLICES]:
        if (columns := _shown_columns(table, folder)) is not None:
            yield folder, columns


def with_table_columns(job: SliceJob, plan: Plan, answer_fields: Sequence[pa.Field]) -> Plan:
    """The plan of an input without any file, with the columns that such an input has in other slices.

    :param answer_fields: columns of the table that are not of the input.
    :raises SliceError: when no slice of the table is published, so that readers would refuse this one.
    """
    columns = table_columns(job)
    if columns is None:
        table, _ = _table_of(job)
        raise SliceError(
            f"slice {job.slice_key!r} is empty: {job.resolved_input_path} has no file that holds anything, "
            f"and no published slice of {table.url} shows which columns an empty one has. Publish a slice "
            "with rows first, put a file with columns and no rows there, or set source.on_empty='skip'",
            kind="input",
        )
    answers = {field.name for field in answer_fields}
    inputs = [plain_field(field).remove_metadata() for field in columns if field.name not in answers]
    return replace(plan, source_schema=pa.schema(inputs), columns=tuple(field.name for field in inputs))


def _table_of(job: SliceJob) -> tuple[Store, str]:
    """The table, and the slice's folder in it."""
    url, _, own = job.slice_path.rpartition("/")
    return Store(url), own


def _shown_columns(table: Store, folder: str) -> pa.Schema | None:
    for name in table.names(folder):
        if name.endswith(".parquet"):
            try:
                with table.fs.open(table.path(f"{folder}/{name}")) as file:
                    return pq.read_schema(file)
            except (OSError, pa.ArrowException):  # it was replaced meanwhile, or is of others
                return None
    return None
