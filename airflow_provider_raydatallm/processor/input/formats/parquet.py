"""Parquet files: a range is a row group."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.input.formats.base import (
    FileFormat,
    FileScan,
    PlannedFile,
    RangeReader,
    RowRange,
    changed_error,
    read_error,
)
from airflow_provider_raydatallm.processor.input.formats.parquet_batches import RowGroups
from airflow_provider_raydatallm.processor.input.formats.parquet_footer import (
    ParquetFooter,
    parse_footer,
    read_footer,
)
from airflow_provider_raydatallm.processor.input.listing import InputFile
from airflow_provider_raydatallm.processor.input.problems import Refusal
from airflow_provider_raydatallm.processor.input.types.convert import conform
from airflow_provider_raydatallm.processor.input.types.lossless import ValueRange
from airflow_provider_raydatallm.processor.input.types.plain import ColumnPath, leaf_paths, leaves
from airflow_provider_raydatallm.processor.input.types.validity import replace_invalid
from airflow_provider_raydatallm.processor.input.types.values import range_of, values_at

_DAMAGED = "is not a readable Parquet file (truncated or not Parquet)"
_WRITE_AGAIN = "Write it again, or leave it out by a pattern in input_path"
#: What pyarrow raises for a file.
_ERRORS = (pa.ArrowException, OSError, ValueError)
#: Of either sign, that nanoseconds in 64 bits can tell.
_MAX_MICROSECONDS = (2**63 - 1) // 1000


class ParquetFormat(FileFormat):
    name = "parquet"
    title = "Parquet"
    position_sizes = (1,)
    extensions = (".parquet", ".pq")

    _last: tuple[ParquetFooter, tuple[str, ...], pa.Schema, Mapping[str, Refusal]] | None = None

    def scan(self, file: InputFile) -> FileScan:
        try:
            with self.open(file, read_ahead=False) as (f, _):
                footer = read_footer(f, file.size)
                nanoseconds = self._find_nanoseconds(file, f, footer)
            schema, refused = self._types(footer, nanoseconds)
            refused = {**refused, **_encrypted(footer)}
        except _ERRORS as e:
            raise read_error(file.path, e, _DAMAGED, advice=_WRITE_AGAIN) from e
        if twice := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise SliceError(
                f"{file.path}: two columns are named {twice[0]!r}",
                kind="input",
                advice="Rename one",
                place=Place(file=file.path, column=twice[0]),
            )
        ranges, first = [], 0
        for group in range(footer.file.metadata.num_row_groups):
            rows = footer.file.metadata.row_group(group).num_rows
            ranges.append(RowRange(first, rows, (group,)))
            first += rows
        return FileScan(schema, tuple(ranges), footer.digest, refused, nanoseconds)

    @contextlib.contextmanager
    def reader(self, file: PlannedFile) -> Iterator[RangeReader]:
        with self.open(file, read_ahead=False) as (f, check):
            try:
                footer = read_footer(f, file.size)
                if footer.digest != file.digest:
                    raise changed_error(file.path)
                schema, _ = self._types(footer, file.notes)
            except _ERRORS as e:
                raise read_error(file.path, e, _DAMAGED, advice=_WRITE_AGAIN) from e
            place = {name: i for i, name in enumerate(schema.names)}
            groups = RowGroups(footer, f, file.notes)

            def read(part: RowRange, fields: pa.Schema) -> Iterator[pa.Table]:
                [group] = part.position
                own = pa.schema([schema.field(place[name]) for name in fields.names if name in place])
                try:
                    for table in groups.read(group, own.names):
                        check()
                        yield self._with_valid_text(conform(table, own, {}))
                except _ERRORS as e:
                    name = groups.find_unreadable(group, own.names)
                    column = "" if name is None else f", column {name!r}"
                    problem = f"cannot be read in row group {group}{column}"
                    raise read_error(file.path, e, problem, column=name) from e

            yield read

    def value_range(self, file: InputFile, scan: FileScan, path: ColumnPath) -> ValueRange | None:
        leaf = leaf_paths(scan.schema).index(path)
        field = scan.schema.field(path[0])
        kind = dict(leaves(field.type, path[:1]))[path]
        planned = PlannedFile(**vars(file), digest=scan.digest, notes=scan.notes)
        found: list[ValueRange] = []
        try:
            with self.open(file, read_ahead=False) as (f, _):
                chunks = read_footer(f, file.size).chunks
            with self.reader(planned) as read:
                for part, group in zip(scan.ranges, chunks, strict=True):
                    known = group[leaf].value_range(kind)
                    if known is not None:
                        found.append(known)
                    elif group[leaf].nulls != group[leaf].values:
                        tables = read(part, pa.schema([field]))
                        values = (v for t in tables for v in values_at(t.column(0), path[1:]))
                        found += [r for r in map(range_of, values) if r is not None]
        except _ERRORS as e:
            raise read_error(file.path, e, _DAMAGED, advice=_WRITE_AGAIN) from e
        return ValueRange(min(r.low for r in found), max(r.high for r in found)) if found else None

    def _types(
        self, footer: ParquetFooter, nanoseconds: tuple[str, ...]
    ) -> tuple[pa.Schema, Mapping[str, Refusal]]:
        """The footer's types; the very objects of the file before for the same ones, as files mostly have."""
        last = self._last
        if last is not None and last[1] == nanoseconds and last[0].has_same_types(footer):
            return last[2:]
        schema, refused = footer.schema, footer.refused
        if nanoseconds:
            fine = parse_footer(footer.content, "ns").schema
            schema = pa.schema([fine.field(f.name) if f.name in nanoseconds else f for f in schema])
        self._last = footer, nanoseconds, schema, refused
        return schema, refused

    def _with_valid_text(self, table: pa.Table) -> pa.Table:
        if not (self.options.replaces_invalid_text and table.num_columns):
            return table
        return pa.Table.from_arrays([replace_invalid(c) for c in table.itercolumns()], schema=table.schema)

    def _find_nanoseconds(self, file: InputFile, f: pa.NativeFile, footer: ParquetFooter) -> tuple[str, ...]:
        """Timestamps in the old format have days and nanoseconds: as nanoseconds in 64 bits those of distant
        years wrap, and as microseconds some lose digits. Their values tell.

        :returns: columns that are read in nanoseconds.
        :raises SliceError: for a column in which both would happen.
        """
        names = [name for name, *_ in leaf_paths(footer.file.schema_arrow)]
        old = {n for n, leaf in zip(names, footer.leaves, strict=True) if leaf.physical_type == "INT96"}
        found = []
        for name in (name for name in dict.fromkeys(names) if name in old and self.options.wants(name)):
            has_digits = is_distant = False
            for micros, nanos in _int96_values(f, footer, name):
                # Both wrap as 64 bits do.
                has_digits |= bool((nanos - micros * 1000).any())
                is_distant |= bool((np.abs(micros) > _MAX_MICROSECONDS).any())
            if has_digits and is_distant:
                raise SliceError(
                    f"{file.path}: column {name!r} holds timestamps of nanoseconds, and some of years before "
                    "1678 or after 2261, in the old INT96 format: no type keeps both",
                    kind="input",
                    advice="Write them as another type, or leave the column out with columns=",
                    place=Place(file=file.path, column=name),
                )
            found += [name] * has_digits
        return tuple(found)


def _encrypted(footer: ParquetFooter) -> dict[str, Refusal]:
    if not footer.may_be_encrypted:
        return {}
    names = [name for name, *_ in leaf_paths(footer.file.schema_arrow)]
    return {
        name: Refusal("is encrypted, and jobs have no keys", "Write it without encryption")
        for group in footer.chunks
        for name, chunk in zip(names, group, strict=True)
        if chunk.is_encrypted
    }


def _int96_values(
    f: pa.NativeFile, footer: ParquetFooter, name: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields a column's values in microseconds and nanoseconds."""
    both = [RowGroups(footer, f), RowGroups(footer, f, [name])]
    paths = [path for path in leaf_paths(footer.file.schema_arrow) if path[0] == name]
    for group in range(footer.file.metadata.num_row_groups):
        tables = (one.read(group, [name]) for one in both)
        for pair in zip(*tables, strict=True):
            for path, leaf in zip(paths, _leaves_of(footer, name), strict=True):
                if leaf.physical_type == "INT96":
                    micros, nanos = (values_at(table.column(0), path[1:]) for table in pair)
                    for one, other in zip(micros, nanos, strict=True):
                        yield tuple(a.drop_null().view(pa.int64()).to_numpy() for a in (one, other))


def _leaves_of(footer: ParquetFooter, name: str) -> list[Any]:
    names = (path[0] for path in leaf_paths(footer.file.schema_arrow))
    return [leaf for leaf, of in zip(footer.leaves, names, strict=True) if of == name]
