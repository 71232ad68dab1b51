"""What the Hive folders above the files say, against the slice and against the rows in the files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.slice_paths import encode_slice_key
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.listing import InputFile, folder_column
from airflow_provider_raydatallm.processor.input.plan import InputReader, Unit
from airflow_provider_raydatallm.processor.input.slice_filter import SliceFilter


def check_folders(job: SliceJob, files: Sequence[InputFile]) -> None:
    """:raises SliceError: for a file in a folder that is of another slice."""
    own_column = folder_column(job.slice_path)
    for file in files:
        for name, value in file.partition:
            is_other_slice = name == own_column and value != job.slice_key
            if is_other_slice or (job.source.column is None and _is_other_day(value, job)):
                raise SliceError(
                    f"input_path {job.input_path} also holds {name}={value}, which is not of slice "
                    f"{job.slice_key!r} ({file.path})",
                    kind="input",
                    advice=f"Set source.column={name!r}, or put {{slice}} into input_path",
                    place=Place(file=file.path),
                )


def check_rows_in_folder(
    reader: InputReader, units: Sequence[Unit], name: str, row_filter: SliceFilter | None
) -> None:
    """Compares a file's own column with its folder of that name.

    :param units: of the file.
    :param row_filter: where the folder holds the slice's key.
    :raises SliceError: for a row of another value, with both.
    """
    [value] = {dict(unit.file.partition)[name] for unit in units}
    for unit in units:
        for table in reader.read_range(unit, [name]):
            column = table.column(0)
            if row_filter is not None:
                is_same = row_filter.mask(column)
            elif value is None:
                is_same = column.is_null()
            else:
                is_same = pc.fill_null(pc.equal(column, _value_as(value, column.type, unit, name)), False)
            others = column.filter(pc.invert(is_same))
            if len(others):
                raise _contradiction(unit, name, value, "has a row of another value", others[0].as_py())


def _value_as(value: str, kind: pa.DataType, unit: Unit, name: str) -> pa.Scalar:
    try:
        return pa.scalar(value).cast(kind)
    except pa.ArrowException:
        raise _contradiction(unit, name, value, f"is of type {kind}") from None


def _contradiction(unit: Unit, name: str, folder: str | None, why: str, *values: object) -> SliceError:
    """
    :param values: of rows.
    """
    return SliceError(
        f"{unit.file.path} lies in the folder {name}={folder}, and its own column {name!r} {why}",
        kind="input",
        advice="Move the rows to their folder, or leave that column out of the file",
        place=Place(file=unit.file.path, column=name),
        row_texts=[f"{value!s:.100}" for value in values],
    )


def _is_other_day(folder: str | None, job: SliceJob) -> bool:
    """Whether a Hive folder is named after a date as the slice is, and another one than the slice. An input
    path that holds the slice's key, or a pattern, chose its folders already."""
    path = job.resolved_input_path
    if folder in (None, job.slice_key) or encode_slice_key(job.slice_key) in path or set("*?[") & set(path):
        return False
    return _is_date(job.slice_key, job.source.slice_format) and _is_date(str(folder), job.source.slice_format)


def _is_date(text: str, date_format: str) -> bool:
    try:
        dt.datetime.strptime(text, date_format)
    except ValueError:
        return False
    return True
