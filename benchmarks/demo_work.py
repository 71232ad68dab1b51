"""The demo's work for cases that compare real engines on it: its companies as Parquet."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_FILES = 10


def write_customers_parquet(folder: Path, rows: int) -> None:
    """Columns `id` (unique) and `name`, in ten files."""
    from demo.customers import write_customers

    (made,) = write_customers(folder.with_name("made"), ["2026-01-31"], rows)
    with open(made, newline="") as f:
        names = [row["Company"] for row in csv.DictReader(f)]
    folder.mkdir()
    each = rows // _FILES
    for i in range(_FILES):
        here = range(i * each, (i + 1) * each)
        table = pa.table({"id": [f"customer-{n:08}" for n in here], "name": [names[n] for n in here]})
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=1000)
