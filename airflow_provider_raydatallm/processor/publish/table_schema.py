"""The columns that a slice publishes, checked before anything is paid: as the publisher will write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.slice_paths import check_folders_above
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import QUARANTINE_FIELDS
from airflow_provider_raydatallm.processor.input.listing import folder_column
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.types.convert import empty_table
from airflow_provider_raydatallm.processor.input.types.plain import (
    children,
    hidden_names,
    outline,
    plain_type,
)
from airflow_provider_raydatallm.processor.publish.row_details import detail_columns

#: How published files are written.
WRITE_OPTIONS = {"compression": "zstd"}


def check_columns(job: SliceJob, plan: Plan, fields: Sequence[pa.Field]) -> None:
    """:raises SliceError: when a column clashes with another one, or Parquet cannot hold it."""
    # Many readers do not tell names apart that differ in case only.
    columns = {c.casefold() for c in plan.columns}
    names = [f.name for f in fields]
    if taken := [n for n in names if n.casefold() in columns]:
        raise SliceError(
            f"the answer column {taken[0]!r} is also a column of the input",
            kind="input",
            advice=_rename(job),
        )
    details = {column.name.casefold() for column in detail_columns(job)}
    found = Counter(n.casefold() for n in names)
    if taken := [n for n in names if n.casefold() in details and found[n.casefold()] > 1]:
        raise SliceError(
            f"the answer column {taken[0]!r} is also a detail's",
            kind="input",
            advice=(_rename(job), "Or leave that detail out of publish.details"),
        )
    folder = (folder_column(job.slice_path) or "").casefold()
    if taken := [n for n in names if n.casefold() == folder]:
        raise SliceError(
            f"the answer column {taken[0]!r} is also the slice folder's",
            kind="input",
            advice=_rename(job),
        )
    for table in (job.paths.of_table.table, job.paths.of_table.quarantine):
        check_folders_above(table, [*plan.columns, *names])
    reserved = {f.name for f in QUARANTINE_FIELDS}
    if taken := [n for n in plan.columns if n in reserved]:
        raise SliceError(
            f"the input has a column {taken[0]!r}, a name that rows in quarantine need",
            kind="input",
            advice="Rename it, or leave it out with columns=",
        )
    for field in plan.schema:
        if problem := _find_problem(field.type):
            raise SliceError(
                f"{_holder(plan, field.name)}: column {field.name!r} is {outline(field.type)}, and "
                f"{problem[0]}",
                kind="input",
                row_texts=(*hidden_names(field.type), problem[1]),
                advice="Leave it out with columns=, or write the input with another type",
                place=Place(column=field.name),
            )
    for field in fields:
        if problem := _find_problem(field.type):
            raise SliceError(
                f"the answer column {field.name!r} is {outline(field.type)}, and {problem[0]}",
                kind="input",
                row_texts=(*hidden_names(field.type), problem[1]),
                advice="Return another type from postprocess, such as text",
                place=Place(column=field.name),
            )


def _holder(plan: Plan, column: str) -> str:
    """A file that has a column."""
    return next((u.file.path for u in plan.units if column in u.file.header), plan.url)


def _rename(job: SliceJob) -> str:
    if job.splits_answers:
        return "Rename that property of output_schema, or leave output_mode='columns' out"
    return "Choose another output_column"


@cache
def _find_problem(kind: pa.DataType) -> tuple[str, str] | None:
    """Writes and reads a column of a type as publishing does: rows taken from tables, which are put
    together.

    :returns: what is wrong, and what of it may name keys of data.
    """
    if _has_empty_lists(kind):  # Arrow divides by their size
        return "such a column cannot be published (lists of no items have no values)", ""
    schema = pa.schema([("x", kind)])
    values = pa.nulls(2, kind)
    if pa.types.is_fixed_size_list(kind):  # some versions of pyarrow read no null of it from Parquet
        items = pa.nulls(2 * kind.list_size, kind.value_type)
        values = pa.FixedSizeListArray.from_arrays(items, type=kind)
    out = pa.BufferOutputStream()
    try:
        rows = pa.table([values], schema=schema).take(pa.array([1]))
        with pq.ParquetWriter(out, schema, **WRITE_OPTIONS) as writer:
            writer.write_table(pa.concat_tables([empty_table(schema), rows]))
        stored = pq.read_table(pa.BufferReader(out.getvalue())).schema.field(0).type
    except (pa.ArrowException, OSError) as e:
        return "such a column cannot be published", str(e).strip().rstrip(".")[:200]
    expected = plain_type(kind)
    if expected in (stored, plain_type(stored)):
        return None
    return f"Parquet would make it {outline(stored)}", "".join(hidden_names(stored))


def _has_empty_lists(kind: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(kind) and kind.list_size == 0:
        return True
    return any(_has_empty_lists(part) for _, part in children(kind))
