"""The columns of answers, with the types that the table has already.

Vectors have one size in all slices, which a slice without an answer does not know by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.types.known import NO_COLUMNS, AnyValues, published_types
from airflow_provider_raydatallm.processor.sizing.model_config import fetch_config, vector_size
from airflow_provider_raydatallm.processor.value_types import TypeMismatch, arrow_type, from_arrow, merge

logger = logging.getLogger(__name__)


def with_known_types(
    job: SliceJob, fields: Sequence[pa.Field], known: Mapping[str, pa.DataType]
) -> list[pa.Field]:
    """
    :param fields: the answers' columns.
    :param known: types of the table's.
    """
    return [field.with_type(_known_type(job, field, known.get(field.name))) for field in fields]


def _known_type(job: SliceJob, field: pa.Field, known: pa.DataType | None) -> pa.DataType:
    own = published_types(pa.schema([field]), NO_COLUMNS, AnyValues()).field(0).type
    if known is None or pt.is_null(known) or own == known:
        return own
    if pt.is_list(own) and pt.is_fixed_size_list(known) and own.value_type == known.value_type:
        return known
    try:
        return known if arrow_type(merge(from_arrow(field.type), from_arrow(known))) == known else own
    except TypeMismatch:  # maps of labels are no Python values
        return own


def undecided_as_null(
    job: SliceJob, fields: Sequence[pa.Field], known: Mapping[str, pa.DataType]
) -> list[pa.Field]:
    """The columns as the table's slices agree on them: vectors of an unknown length leave that open."""
    return [
        field.with_type(pa.null())
        if job.task.answers_vectors
        and pt.is_list(field.type)
        and pt.is_null(known.get(field.name, pa.null()))
        else field
        for field in fields
    ]


def with_known_size(job: SliceJob, fields: Sequence[pa.Field]) -> list[pa.Field]:
    """The columns of a slice without an answer, its vectors as long as the model's configuration says, unless
    the table told it."""
    return [_with_known_size(job, field) if field.name == job.output_column else field for field in fields]


def _with_known_size(job: SliceJob, field: pa.Field) -> pa.Field:
    if not job.task.answers_vectors or pt.is_fixed_size_list(field.type):
        return field
    size = _size_at_the_hub(job)
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
    if job.engine.is_users_code or not job.engine.capabilities.loads_model:
        return None
    fetch_config(job.model_source, job.engine.arguments)
    return vector_size(job.model_source, job.engine.arguments)
