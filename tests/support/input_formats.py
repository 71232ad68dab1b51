"""How files of each input format are written. The tests of all formats run over `WRITERS`, so that a new
format is tested by an entry here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec.input_formats import FormatName


def _parquet(table: pa.Table, path: Path, range_rows: int) -> None:
    pq.write_table(table, path, row_group_size=range_rows, compression="none", use_dictionary=False)


def _csv(table: pa.Table, path: Path, range_rows: int) -> None:
    def cell(value: object) -> str:
        if isinstance(value, str):
            return '"{}"'.format(value.replace('"', '""'))
        return "" if value is None else str(value)

    rows = zip(*table.to_pydict().values(), strict=True)
    path.write_text("\n".join([",".join(table.column_names), *(",".join(map(cell, row)) for row in rows)]))


def _json_lines(table: pa.Table, path: Path, range_rows: int) -> None:
    path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in table.to_pylist()))


#: Write the rows of a table uncompressed, so many in a range where writers cut ranges, and texts of equal
#: length in files of equal size.
WRITERS: dict[FormatName, Callable[[pa.Table, Path, int], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _json_lines,
}


def write_input(path: Path, table: pa.Table, range_rows: int = 1000) -> None:
    """Writes a file in the format that its name ends with, perhaps before `.gz`."""
    name = path.name.removesuffix(".gz").rpartition(".")[2]
    WRITERS[name](table, path, range_rows)  # type: ignore[index]
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes(), compresslevel=0, mtime=0))
