"""Parquet files: a range is a row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
from airflow_provider_raydatallm.processor.input.parquet_footer import ParquetFooter, read_footer

#: Rows of a row group in one table, at most; and their bytes, about: a column may hold files.
BATCH_ROWS = 8192
_BATCH_BYTES = 64 << 20


class ParquetFormat(FileFormat):
    _last_schema: tuple[ParquetFooter, pa.Schema] | None = None

    def scan(self, file: InputFile) -> FileScan:
        try:
            with self.open(file, read_ahead=False) as (f, _):
                footer = read_footer(f, file.size)
            meta, schema = footer.file.metadata, self._build_schema(footer)
        except (pa.ArrowException, OSError, ValueError) as e:
            problem = " is not a readable Parquet file (truncated or not Parquet)"
            raise read_error(file.path, e, problem) from e
        ranges, first = [], 0
        for group in range(meta.num_row_groups):
            rows = meta.row_group(group).num_rows
            ranges.append(RowRange(first_row=first, rows=rows, row_group=group))
            first += rows
        return FileScan(schema, tuple(ranges), footer.digest)

    def read(self, file: PlannedFile, part: RowRange, fields: pa.Schema) -> Iterator[pa.Table]:
        names = [n for n in fields.names if n in file.header]
        try:
            with self.open(file, read_ahead=False) as (f, check):
                footer = read_footer(f, file.size)
                if footer.digest != file.digest:
                    raise changed_error(file.path)
                parquet, groups = footer.open(f), [part.row_group]
                rows = _batch_rows(footer.file.metadata.row_group(part.row_group), names)
                for batch in parquet.iter_batches(rows, groups, names, use_threads=False):
                    check()
                    # A column's own name may hold dots, which Parquet also uses for nested fields.
                    yield pa.Table.from_batches([batch]).select(names)
        except (pa.ArrowException, OSError, ValueError) as e:
            raise read_error(file.path, e, f", row group {part.row_group}") from e

    def _build_schema(self, footer: ParquetFooter) -> pa.Schema:
        """The footer's schema; the very object of the file before for the same one, as files mostly have."""
        if self._last_schema is not None:
            last, schema = self._last_schema
            if last.arrow_types == footer.arrow_types and last.file.schema.equals(footer.file.schema):
                return schema
        schema = footer.build_schema()
        self._last_schema = footer, schema
        return schema


def _batch_rows(group: Any, names: Sequence[str]) -> int:
    """:param group: metadata of a row group."""
    columns = [group.column(i) for i in range(group.num_columns)]
    # The path of a nested column begins with its name.
    read = [
        c
        for c in columns
        if any(c.path_in_schema == n or c.path_in_schema.startswith(f"{n}.") for n in names)
    ]
    size: int = sum(column.total_uncompressed_size for column in read)
    rows: int = group.num_rows
    return max(1, min(BATCH_ROWS, _BATCH_BYTES * rows // max(1, size)))
