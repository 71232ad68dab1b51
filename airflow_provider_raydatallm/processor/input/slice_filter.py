"""Selects the rows of a file that belong to the slice by the value of `slice_column`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import UNLIKE_INSTANTS, SliceJob
from airflow_provider_raydatallm.processor.input.listing import InputFile


@dataclass(frozen=True)
class SliceFilter:
    """Rows whose `column` equals the slice key. Dates and times are formatted first, in the slice's
    timezone."""

    column: str
    key: str
    format: str
    timezone: str

    def mask(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if _is_date(values.type):
            # Whole seconds: %S would print the fraction of finer units.
            text = pc.strftime(self._in_timezone(_floor_to_seconds(values)), format=self.format)
        elif pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            text = values  # of a row whose bytes are no text, only that is known: it is another key
        else:
            try:
                text = values.cast(pa.string())
            except pa.ArrowNotImplementedError as e:
                raise SliceError(
                    f"source.column {self.column!r} is {values.type}, which has no text to compare with a "
                    "slice key: choose a column of text, numbers or dates",
                    kind="input",
                ) from e
        key = self.key.encode() if text is values else self.key
        return pc.fill_null(pc.equal(text, pa.scalar(key, text.type)), False)

    def _in_timezone(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if getattr(values.type, "tz", None) is not None:
            return values.cast(pa.timestamp("s", tz=self.timezone))
        # A time without a zone is taken as the slice's; it matters only to a format with a zone.
        return pc.assume_timezone(values, self.timezone, ambiguous="earliest", nonexistent="earliest")


def _is_date(column_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(column_type) or pa.types.is_date(column_type))


def _floor_to_seconds(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unlike `floor_temporal`, at the ends of a unit's range, too."""
    if not pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("s"))
    kind = pa.timestamp("s", tz=values.type.tz)
    seconds = values.cast(kind, safe=False)  # towards 1970
    is_later = pc.greater(seconds.cast(values.type), values)
    return pc.subtract(seconds.cast(pa.int64()), is_later.cast(pa.int64())).cast(kind)


def _check_format(slice_format: str) -> None:
    """:raises SliceError: when Arrow writes it otherwise than Python does, which wrote the key: no row would
    be the slice's."""
    for instant in UNLIKE_INSTANTS:
        written = pc.strftime(pa.scalar(instant, pa.timestamp("s", tz="UTC")), format=slice_format).as_py()
        if written != instant.strftime(slice_format):
            raise SliceError(
                f"source.slice_format {slice_format!r} has a directive that is not portable, and writes "
                f"{written!r} of the dates in source.column: use those of every strftime, such as %m and %d",
                kind="input",
            )


def slice_filter(job: SliceJob, column: str) -> SliceFilter:
    return SliceFilter(column, job.slice_key, job.slice_format, job.slice_timezone)


def build_slice_filter(
    job: SliceJob, files: Sequence[InputFile], columns: Sequence[str], schema: pa.Schema
) -> SliceFilter | None:
    """Returns None where all rows of the files are the slice's.

    :param columns: of the input.
    :param schema: of those that are read.
    """
    column = job.slice_column
    if column is None or not files or all(column in dict(f.partition) for f in files):
        return None
    if column not in columns:
        raise SliceError(
            f"source.column {column!r} is neither a column of the input nor a Hive folder in its path. "
            f"Columns: {list(columns)}",
            kind="input",
        )
    if column in schema.names and _is_date(schema.field(column).type):
        _check_format(job.slice_format)
    return slice_filter(job, column)
