"""Parquet files that end the process that reads their rows, as a damaged one may."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

#: By its number of rows a process knows such a file.
_ROWS = 13
#: Python runs this in every process that has its folder on PYTHONPATH.
_SITE = """
import os
import pyarrow.parquet as pq

_iter_batches = pq.ParquetFile.iter_batches


def iter_batches(file, *args, **options):
    if file.metadata.num_rows == {rows}:
        os.kill(os.getpid(), {signal})
    return _iter_batches(file, *args, **options)


pq.ParquetFile.iter_batches = iter_batches
"""


def write_deadly_file(path: Path) -> None:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(_ROWS)]}), path)


def deadly_environment(folder: Path, signal: int) -> dict[str, str]:
    """Environment variables with which a process dies of such files."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE.format(rows=_ROWS, signal=int(signal)))
    return {"PYTHONPATH": str(folder)}
