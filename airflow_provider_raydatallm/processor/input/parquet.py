"""Parquet files: a range is a row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.processor.input.base import FileFormat, FileScan, RowRange, read_error

#: Rows of a row group in one table.
BATCH_ROWS = 8192


class ParquetFormat(FileFormat):
    def scan(self, path: str) -> FileScan:
        try:
            with self.open(path) as f:
                meta = pq.ParquetFile(f).metadata
                schema = meta.schema.to_arrow_schema()
        except (pa.ArrowInvalid, OSError) as e:
            raise read_error(path, e, " is not a readable Parquet file (truncated or not Parquet)") from e
        ranges, first = [], 0
        for group in range(meta.num_row_groups):
            rows = meta.row_group(group).num_rows
            ranges.append(RowRange(first_row=first, rows=rows, row_group=group))
            first += rows
        return FileScan(schema.remove_metadata(), tuple(ranges))

    def read(self, path: str, part: RowRange, header: Sequence[str], fields: pa.Schema) -> Iterator[pa.Table]:
        with self.open(path) as f:
            file = pq.ParquetFile(f)
            names = [n for n in fields.names if n in file.schema_arrow.names]
            groups = [part.row_group]
            try:
                for batch in file.iter_batches(BATCH_ROWS, groups, names, use_threads=False):
                    # A column's own name may hold dots, which Parquet also uses for nested fields.
                    yield pa.Table.from_batches([batch]).select(names)
            except (pa.ArrowInvalid, OSError) as e:
                raise read_error(path, e, f", row group {part.row_group}") from e
