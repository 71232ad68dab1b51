"""Parquet files: a range is a row group."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from airflow_provider_raydatallm.processor.input.base import (
    FileFormat,
    FileScan,
    PlannedFile,
    RowRange,
    changed_error,
    read_error,
)
from airflow_provider_raydatallm.processor.input.listing import InputFile
from airflow_provider_raydatallm.processor.input.parquet_footer import open_parquet

#: Rows of a row group in one table.
BATCH_ROWS = 8192


class ParquetFormat(FileFormat):
    def scan(self, file: InputFile) -> FileScan:
        try:
            with self.open(file) as f:
                parquet = open_parquet(f, file.size)
                meta, schema = parquet.file.metadata, parquet.schema
        except (pa.ArrowException, OSError, ValueError) as e:
            problem = " is not a readable Parquet file (truncated or not Parquet)"
            raise read_error(file.path, e, problem) from e
        ranges, first = [], 0
        for group in range(meta.num_row_groups):
            rows = meta.row_group(group).num_rows
            ranges.append(RowRange(first_row=first, rows=rows, row_group=group))
            first += rows
        return FileScan(schema, tuple(ranges), parquet.digest)

    def read(self, file: PlannedFile, part: RowRange, fields: pa.Schema) -> Iterator[pa.Table]:
        names = [n for n in fields.names if n in file.header]
        try:
            with self.open(file) as f:
                parquet = open_parquet(f, file.size)
                if parquet.digest != file.digest:
                    raise changed_error(file.path)
                groups = [part.row_group]
                for batch in parquet.file.iter_batches(BATCH_ROWS, groups, names, use_threads=False):
                    # A column's own name may hold dots, which Parquet also uses for nested fields.
                    yield pa.Table.from_batches([batch]).select(names)
        except (pa.ArrowException, OSError, ValueError) as e:
            raise read_error(file.path, e, f", row group {part.row_group}") from e
