"""Selects the rows of a file that belong to the slice by the value of `source.column`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError, missing_column
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.source import UNLIKE_INSTANTS
from airflow_provider_raydatallm.processor.input.listing import InputFile
from airflow_provider_raydatallm.processor.input.types.plain import hidden_names, outline


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
            text = self.written(values)
        elif pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            text = values  # of a row whose bytes are no text, only that is known: it is another key
        else:
            try:
                text = values.cast(pa.string())
            except pa.ArrowNotImplementedError as e:
                raise SliceError(
                    f"source.column {self.column!r} is {outline(values.type)}, which has no text to compare "
                    "with a slice key",
                    kind="input",
                    row_texts=hidden_names(values.type),
                    advice="Choose a column of text, numbers or dates",
                    place=Place(column=self.column),
                ) from e
        key = self.key.encode() if text is values else self.key
        return pc.fill_null(pc.equal(text, pa.scalar(key, text.type)), False)

    def written(self, dates: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns the slice keys of dates and times."""
        # Whole seconds: %S would print the fraction of finer units.
        return pc.strftime(self._in_timezone(_floor_to_seconds(dates)), format=self.format)

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
                f"{written!r} of the dates in source.column",
                kind="input",
                advice="Use those of every strftime, such as %m and %d",
            )


def _check_key(dates: SliceFilter) -> None:
    """:raises SliceError: when no date is written as the slice key is: all slices would count as empty."""
    instants = pa.chunked_array([pa.array(UNLIKE_INSTANTS, pa.timestamp("s", tz="UTC"))])
    examples = dates.written(instants).to_pylist()
    if all(_is_read_back(example, dates.format) for example in examples):
        is_date = _is_read_back(dates.key, dates.format)
    else:  # Python does not read all that it writes, such as the week of %G-W%V
        is_date = _shape(dates.key) in map(_shape, examples)
    if not is_date:
        raise SliceError(
            f"source.column {dates.column!r} holds dates, which source.slice_format {dates.format!r} writes "
            f"as {examples[1]!r}, and the slice key is {dates.key!r}: no row would be the slice's",
            kind="input",
            advice="Set source.slice_format to the key's format; of a DAG with partitions, that is its "
            "timetable's key_format, which may be the one to change",
            place=Place(column=dates.column),
        )


def _is_read_back(text: str, date_format: str) -> bool:
    for year in ("2000 ", ""):  # a leap year, for formats without one
        try:
            date = dt.datetime.strptime(year + text, f"{'%Y ' if year else ''}{date_format}")
        except (ValueError, re.error):  # re.error: for %Y twice
            continue
        return date.strftime(date_format) == text
    return False


def _shape(text: str) -> str:
    """Returns a text with each of its digits, words and signs alike."""
    return re.sub("[+-]", "-", re.sub(r"[^\W\d_]+", "x", re.sub(r"\d", "0", text)))


def slice_filter(job: SliceJob, column: str) -> SliceFilter:
    return SliceFilter(column, job.slice_key, job.source.slice_format, job.slice_timezone)


def build_slice_filter(
    job: SliceJob, files: Sequence[InputFile], columns: Sequence[str], schema: pa.Schema
) -> SliceFilter | None:
    """Returns None where all rows of the files are the slice's.

    :param columns: of the input.
    :param schema: of those that are read.
    """
    column = job.source.column
    if column is None or not files or all(column in dict(f.partition) for f in files):
        return None
    if column not in columns:
        raise missing_column(
            f"source.column {column!r} is neither a column of the input nor a Hive folder in its path",
            column,
            columns,
        )
    row_filter = slice_filter(job, column)
    if column in schema.names and _is_date(schema.field(column).type):
        _check_format(job.source.slice_format)
        _check_key(row_filter)
    return row_filter
