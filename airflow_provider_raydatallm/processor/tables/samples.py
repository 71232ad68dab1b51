"""A few rows of a published slice, or of its quarantine."""

from __future__ import annotations

from typing import Any

from airflow_provider_raydatallm.processor.store.published import locate_files
from airflow_provider_raydatallm.processor.store.versions import SliceFolders, Version

_BATCH_ROWS = 1000


def first_rows(
    folders: SliceFolders,
    version: Version,
    rows: int,
    *,
    quarantined: bool = False,
    most_columns: int | None = None,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the names of columns, and the first rows of a version, or of those that failed. Reads no more
    than it returns."""
    import pyarrow.parquet as pq

    located = locate_files(folders, version, quarantine=quarantined)
    names: list[str] = []
    lines: list[dict[str, Any]] = []
    for file in version.quarantine if quarantined else version.files:
        store, name = located[file]
        with store.fs.open(store.path(name), "rb") as f, pq.ParquetFile(f) as parquet:
            names = list(parquet.schema_arrow.names)[:most_columns]
            size = min(rows - len(lines), _BATCH_ROWS)
            for batch in parquet.iter_batches(batch_size=size, columns=names):
                lines += batch.to_pylist()
                if len(lines) >= rows:
                    return names, lines[:rows]
    return names, lines
