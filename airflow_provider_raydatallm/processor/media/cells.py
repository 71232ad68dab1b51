"""From a column's cells to the files of rows: their bytes, their addresses, or lists of either.

A cell is bytes, an address, `{"bytes": ..., "path": ...}` as in Hugging Face's datasets, or a list of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_raydatallm.contract.result.errors import SliceError, missing_column
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.tasks.base import MediaColumn
from airflow_provider_raydatallm.processor.columns import FILES_FIELD

#: A row's prompt has to hold them all.
_MOST_FILES = 64
_FORMS = "bytes, an address, a struct of `bytes` and `path`, or a list of these"


class MediaFile(NamedTuple):
    """Its content, or where it is."""

    data: bytes | None = None
    address: str | None = None


def check_media_column(media: MediaColumn, schema: pa.Schema) -> None:
    """:raises SliceError: when the input lacks the column, or it cannot hold files."""
    column, name = media.column, f"{media.argument}.column"
    if column not in schema.names:
        raise missing_column(
            f"{name} names {column!r}, which the input does not have",
            column,
            schema.names,
        )
    kind = schema.field(column).type
    if not _holds_files(_element(kind)):
        is_nested = pa.types.is_nested(kind)  # names of fields may be keys of data
        raise SliceError(
            f"{name} names {column!r}, of {'a nested type' if is_nested else f'type {kind}'}: {media.noun}s "
            f"are {_FORMS}",
            kind="input",
            place=Place(column=column),
            row_texts=(str(kind) if is_nested else "",),
        )


def files_of_cell(media: MediaColumn, cell: Any) -> list[MediaFile]:
    """:raises SliceError: for a cell without a file."""
    files = [_file(value) for value in (cell if isinstance(cell, list) else [cell])]
    if not files or None in files:
        raise SliceError(
            f"column {media.column!r} holds no {media.noun}",
            kind="input",
            place=Place(column=media.column),
            row_texts=(f"{cell!r:.100}",),
        )
    if len(files) > _MOST_FILES:
        raise SliceError(
            f"column {media.column!r} holds {len(files):,} {media.noun}s, and a row takes at most "
            f"{_MOST_FILES}",
            kind="input",
            place=Place(column=media.column),
        )
    return [file for file in files if file is not None]


def to_array(rows: Sequence[Sequence[MediaFile]]) -> pa.Array:
    """The files of rows, as a column."""
    return pa.array([[file._asdict() for file in files] for files in rows], FILES_FIELD.type)


def from_array(column: pa.ChunkedArray) -> list[list[MediaFile]]:
    """The files of a column's rows."""
    return [[MediaFile(**file) for file in files] for files in column.to_pylist()]


def _file(value: Any) -> MediaFile | None:
    if isinstance(value, Mapping):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes):
        return MediaFile(data=value)
    return MediaFile(address=value) if value else None


def _element(kind: pa.DataType) -> pa.DataType:
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    return kind.value_type if is_list else kind


def _holds_files(kind: pa.DataType) -> bool:
    if pt.is_struct(kind):
        names = {field.name for field in kind}
        return bool(names & {"bytes", "path"})
    tests = (
        pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view,
        pt.is_string, pt.is_large_string, pt.is_string_view,
    )  # fmt: skip
    return any(test(kind) for test in tests)
