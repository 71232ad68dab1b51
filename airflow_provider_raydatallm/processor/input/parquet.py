"""Parquet files: a range is a row group."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

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
                parquet, digest = open_parquet(f, file.size)
                meta, schema = parquet.metadata, parquet.schema_arrow
        except (pa.ArrowException, OSError) as e:
            raise read_error(
                file.path, e, " is not a readable Parquet file (truncated or not Parquet)"
            ) from e
        ranges, first = [], 0
        for group in range(meta.num_row_groups):
            rows = meta.row_group(group).num_rows
            ranges.append(RowRange(first_row=first, rows=rows, row_group=group))
            first += rows
        return FileScan(_with_uuids(schema, parquet.schema), tuple(ranges), digest)

    def read(self, file: PlannedFile, part: RowRange, fields: pa.Schema) -> Iterator[pa.Table]:
        try:
            with self.open(file) as f:
                parquet, digest = open_parquet(f, file.size)
                if digest != file.digest:
                    raise changed_error(file.path)
                names = [n for n in fields.names if n in parquet.schema_arrow.names]
                groups = [part.row_group]
                for batch in parquet.iter_batches(BATCH_ROWS, groups, names, use_threads=False):
                    # A column's own name may hold dots, which Parquet also uses for nested fields.
                    yield pa.Table.from_batches([batch]).select(names)
        except (pa.ArrowException, OSError) as e:
            raise read_error(file.path, e, f", row group {part.row_group}") from e


def _with_uuids(schema: pa.Schema, parquet: pq.ParquetSchema) -> pa.Schema:
    """Gives columns that Parquet says are UUIDs Arrow's own type for them, which runs no code of a file's."""
    uuids = {
        column.path
        for column in map(parquet.column, range(len(parquet)))
        if column.logical_type.type == "UUID" and hasattr(pa, "uuid")
    }
    for index, field in enumerate(schema):
        if field.name in uuids and field.type == pa.binary(16):
            schema = schema.set(index, field.with_type(pa.uuid()))
    return schema.remove_metadata()
