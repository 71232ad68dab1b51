"""One type of vectors in all slices of a table: readers such as Polars refuse a table of several.

How long a model's vectors are, and of which numbers, another published slice says, by a file's footer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sizing.model_config import fetch_config, vector_size
from airflow_provider_raydatallm.processor.storage.store import Store

logger = logging.getLogger(__name__)

#: Slices that are looked at, from the last one on: some may have no vector.
_MOST_SLICES = 20


class _Shown(NamedTuple):
    folder: str
    type: pa.DataType


def check_vectors(job: SliceJob, fields: Sequence[pa.Field]) -> None:
    """:raises SliceError: when another slice of the table shows vectors of another type, and the job does not
    replace published slices."""
    own = next((field.type for field in fields if field.name == job.output_column), None)
    if job.task != "embed" or job.force_rerun or own is None or (shown := _shown_elsewhere(job)) is None:
        return
    size = own.list_size if pa.types.is_fixed_size_list(own) else shown.type.list_size
    if (own.value_type, size) == (shown.type.value_type, shown.type.list_size):
        return
    if own.value_type != shown.type.value_type:
        setting = f"Set embedding.dtype='{_name(shown.type.value_type)}'"
    else:
        setting = f"Give the model, or embedding.dimensions, that makes vectors of {shown.type.list_size}"
    raise SliceError(
        f"slice {shown.folder!r} of the table has vectors of {shown.type.list_size} {shown.type.value_type} "
        f"numbers in column {job.output_column!r}, and this slice's would be {size} {own.value_type} ones: "
        f"Polars and other readers refuse a table of both. {setting}, choose another output_path, or run all "
        "slices of the table again with rerun={'force': True, 'on_config_change': 'recompute'}",
        kind="input",
    )


def with_known_size(job: SliceJob, fields: Sequence[pa.Field]) -> list[pa.Field]:
    """The columns of a slice without an answer, its vectors as long as those of other slices, or else as the
    model's configuration says."""
    return [_with_known_size(job, field) if field.name == job.output_column else field for field in fields]


def _with_known_size(job: SliceJob, field: pa.Field) -> pa.Field:
    if job.task != "embed" or pa.types.is_fixed_size_list(field.type):
        return field
    shown = _shown_elsewhere(job)
    size = shown.type.list_size if shown is not None else _size_at_the_hub(job)
    if size is None:
        logger.warning(
            "no slice of the table says how long its vectors are, nor does a configuration of model %r that "
            "can be read here: column %r is a list of any length, with which Polars reads no other slice. "
            "Run this slice once more, with rerun.force=True, when another one is published",
            job.model_source, field.name,
        )  # fmt: skip
        return field
    return field.with_type(pa.list_(field.type.value_type, size))


def _size_at_the_hub(job: SliceJob) -> int | None:
    if job.resolved_engine != "vllm":
        return None
    fetch_config(job.model_source, job.engine_kwargs)
    return vector_size(job.model_source, job.engine_kwargs)


def _shown_elsewhere(job: SliceJob) -> _Shown | None:
    """The vectors that another slice of the table shows."""
    if job.has_tables_for_slices:
        return None
    url, _, own = job.slice_path.rpartition("/")
    table = Store(url)
    others = [name for name in table.names() if name != own and not name.startswith(("_", "."))]
    for folder in sorted(others, reverse=True)[:_MOST_SLICES]:
        kind = _type_in(table, folder, job.output_column)
        if kind is not None and pa.types.is_fixed_size_list(kind):
            return _Shown(folder, kind)
    return None


def _type_in(table: Store, folder: str, column: str) -> pa.DataType | None:
    for name in table.names(folder):
        if name.endswith(".parquet"):
            try:
                with table.fs.open(table.path(f"{folder}/{name}")) as file:
                    schema = pq.read_schema(file)
            except (OSError, pa.ArrowException):  # it was replaced meanwhile, or is of others
                return None
            return schema.field(column).type if column in schema.names else None
    return None


def _name(kind: pa.DataType) -> str:
    return {pa.float16(): "float16", pa.int8(): "int8"}.get(kind, "float32")
