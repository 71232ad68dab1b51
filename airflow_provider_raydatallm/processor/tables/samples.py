"""A few rows of a published slice, or of its quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion
from airflow_provider_raydatallm.processor.store.versions import Version

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 1000


def first_rows(
    folders: SliceFolders,
    version: Version | StagedVersion,
    rows: int,
    *,
    quarantined: bool = False,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the names of columns, and the first rows of a version, or of those that failed. Reads no more
    than it returns.

    :raises SliceError: naming a file that is no Parquet any more.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(version, StagedVersion):
        located, version = version.locate(folders), version.version
    else:
        located = open_sink(folders).locate(version, quarantine=quarantined)
    names: list[str] = []
    lines: list[dict[str, Any]] = []
    for file in version.quarantine if quarantined else version.files:
        store, name = located[file]
        try:
            with store.open(name) as f, pq.ParquetFile(f) as parquet:
                names = list(parquet.schema_arrow.names)
                size = min(rows - len(lines), _BATCH_ROWS)
                for batch in parquet.iter_batches(batch_size=size, columns=names):
                    lines += _rows(batch)
                    if len(lines) >= rows:
                        return names, lines[:rows]
        except pa.ArrowException as e:
            path = f"{store.url}/{name}"
            raise SliceError(
                f"{path} is damaged", kind="input", place=Place(file=path), row_texts=(str(e),)
            ) from e
    return names, lines


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        columns = [[_value(column, i) for i in range(batch.num_rows)] for column in batch.columns]
        return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _value(column: pa.Array, row: int) -> Any:
    """A cell; as Arrow's text of it where Python has no such value: a year after 9999, nanoseconds without
    pandas, bytes that are no UTF-8."""
    try:
        return column[row].as_py()
    except (ValueError, OverflowError):
        return column.slice(row, 1).to_string(skip_new_lines=True)[1:-1]
