"""Which format an input file has, how it is read, and how its rows take the slice's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.processor.input.formats import Format, Range, Scan, unreadable
from airflow_provider_raydatallm.processor.input.text import COMPRESSIONS, Csv, JsonLines

FormatName = Literal["parquet", "csv", "jsonl"]

#: Rows of a row group that are handed on at once.
BATCH_ROWS = 8192

_EXTENSIONS: dict[str, FormatName] = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "jsonl",
}  # fmt: skip


def format_of(path: str) -> FormatName | None:
    """The format that a file's name says, its compression suffix aside; None when it says none."""
    name = path.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return next((fmt for ext, fmt in _EXTENSIONS.items() if name.endswith(ext)), None)


class Parquet(Format):
    def scan(self, path: str) -> Scan:
        try:
            with self.open(path) as f:
                meta = pq.ParquetFile(f).metadata
                schema = meta.schema.to_arrow_schema()
        except (pa.ArrowInvalid, OSError) as e:
            raise unreadable(path, e, " is no readable Parquet file (truncated or not Parquet)") from e
        ranges, first = [], 0
        for group in range(meta.num_row_groups):
            rows = meta.row_group(group).num_rows
            ranges.append(Range(first_row=first, rows=rows, row_group=group))
            first += rows
        return Scan(schema.remove_metadata(), tuple(ranges))

    def read(
        self, path: str, part: Range, *, header: Sequence[str], schema: pa.Schema, columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        with self.open(path) as f:
            file = pq.ParquetFile(f)
            here = set(file.schema_arrow.names)
            wanted = [c for c in columns if c in here]
            try:
                for batch in file.iter_batches(
                    BATCH_ROWS, row_groups=[part.row_group], columns=wanted, use_threads=False
                ):
                    table = pa.Table.from_batches([batch])
                    # A column's own name may hold dots, which Parquet also uses for nested fields.
                    yield table.select(wanted)
            except (pa.ArrowInvalid, OSError) as e:
                raise unreadable(path, e, f", row group {part.row_group}") from e


FORMATS: dict[FormatName, type[Format]] = {"parquet": Parquet, "csv": Csv, "jsonl": JsonLines}


def conform(table: pa.Table, schema: pa.Schema, constants: Mapping[str, Any]) -> pa.Table:
    """`table` with exactly the fields of `schema`: constants and missing columns filled in, types cast to the
    slice's."""
    columns = []
    for field in schema:
        if field.name in table.schema.names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            value = pa.scalar(constants.get(field.name), field.type)
            columns.append(pa.chunked_array([pa.repeat(value, table.num_rows)], field.type))
    return pa.Table.from_arrays(columns, schema=schema) if columns else table
