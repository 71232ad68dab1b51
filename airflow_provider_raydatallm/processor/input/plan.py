"""The plan of a slice: which units of which files its rows come from.

Deterministic: the same input files give the same plan, unit for unit and id for id. A unit is a contiguous
range of rows of one file; a row's id is (unit, offset), so no id column is asked of the user. The schema of
the rows is fixed here, once for all files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import CsvOptions, SliceJob
from airflow_provider_raydatallm.processor.input.formats import Format, Range, Scan
from airflow_provider_raydatallm.processor.input.listing import (
    InputFile,
    Listing,
    describe,
    digest,
    folder_column,
    list_input,
)
from airflow_provider_raydatallm.processor.input.parquet import FORMATS, FormatName, conform, format_of
from airflow_provider_raydatallm.processor.input.slice_filter import SliceFilter, slice_filter
from airflow_provider_raydatallm.processor.storage import open_fs

#: Files that are looked into at once: each look waits for storage rather than computes.
_LOOKS = 16


@dataclass(frozen=True)
class Unit:
    """`rows` counts the slice's rows in the range: fewer than the range's when `slice_column` filters it.
    `header` is the file's columns, in its order."""

    file: InputFile
    header: tuple[str, ...]
    range: Range
    rows: int

    @cached_property
    def id(self) -> str:
        """16 hex digits that name this range of rows of this version of the file."""
        return digest([*self.file.identity, self.range.first_row, self.range.rows, self.rows])


@dataclass(frozen=True)
class Plan:
    """Units in input order, and how to read them. Small and picklable, it travels to every reading task."""

    url: str
    format: FormatName
    source_schema: pa.Schema
    columns: tuple[str, ...]
    units: tuple[Unit, ...]
    input_hash: str
    files: int
    column_types: Mapping[str, str]
    csv_options: CsvOptions
    slice_filter: SliceFilter | None = None

    @property
    def rows(self) -> int:
        return sum(u.rows for u in self.units)

    @property
    def schema(self) -> pa.Schema:
        """Input columns that the published rows keep."""
        return pa.schema([self.source_schema.field(c) for c in self.columns])

    def read(self, unit: Unit, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The slice's rows of a unit, in order, as tables of `columns` (all of them by default).

        :raises SliceError: when the file is no longer what was planned.
        """
        fs, _ = open_fs(self.url)
        names = self.columns if columns is None else columns
        reader = FORMATS[self.format](fs, self.column_types, self.csv_options)
        left = unit.rows
        try:
            found = _read(
                reader, unit.file, unit.header, unit.range, self.source_schema, self.slice_filter, names
            )
            for table in found:
                table = table.slice(0, left)
                left -= table.num_rows
                if table.num_rows:
                    yield table
        except pa.ArrowException as e:
            raise SliceError(
                f"{unit.file.path}, from row {unit.range.first_row + 1:,}: {e}", kind="input"
            ) from e
        if left:
            raise SliceError(
                f"{unit.file.path} changed while the slice ran: {left} rows of {unit.rows} are gone",
                kind="transient",
            )

    def locate(self, index: int, offset: int) -> str:
        """Where a row is, for people."""
        unit = self.units[index]
        if self.slice_filter is not None:  # offsets count the rows that the filter keeps
            return (
                f"row {offset + 1:,} of the slice in {unit.file.path}, from row {unit.range.first_row + 1:,}"
            )
        return f"row {unit.range.first_row + offset + 1:,} of {unit.file.path}"

    def check_unchanged(self, units: Iterable[Unit]) -> None:
        """:raises SliceError: when a file of these units is no longer the one that was planned."""
        fs, _ = open_fs(self.url)
        files = list(dict.fromkeys(u.file for u in units))
        with ThreadPoolExecutor(_LOOKS) as pool:
            for file, now in zip(files, pool.map(lambda f: describe(fs, f.path), files), strict=True):
                if now.identity != file.identity:
                    raise SliceError(
                        f"{file.path} changed while the slice ran; run it again", kind="transient"
                    )

    def to_json(self) -> dict[str, Any]:
        files = list(dict.fromkeys(u.file for u in self.units))
        headers = list(dict.fromkeys(u.header for u in self.units))
        file_at, header_at = ({v: i for i, v in enumerate(values)} for values in (files, headers))
        return {
            "url": self.url,
            "format": self.format,
            "schema": base64.b64encode(self.source_schema.serialize()).decode(),
            "columns": self.columns,
            "input_hash": self.input_hash,
            "files": self.files,
            "column_types": dict(self.column_types),
            "csv_options": self.csv_options.model_dump(),
            "slice_filter": asdict(self.slice_filter) if self.slice_filter else None,
            "input_files": [astuple(f) for f in files],
            "headers": headers,
            "units": [[file_at[u.file], header_at[u.header], u.rows, *astuple(u.range)] for u in self.units],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        files = [
            InputFile(path, size, version, tuple((k, v) for k, v in partition))
            for path, size, version, partition in value["input_files"]
        ]
        headers = [tuple(h) for h in value["headers"]]
        return cls(
            url=value["url"],
            format=value["format"],
            source_schema=pa.ipc.read_schema(pa.BufferReader(base64.b64decode(value["schema"]))),
            columns=tuple(value["columns"]),
            units=tuple(
                Unit(files[file], headers[header], Range(*place), rows)
                for file, header, rows, *place in value["units"]
            ),
            input_hash=value["input_hash"],
            files=value["files"],
            column_types=value["column_types"],
            csv_options=CsvOptions(**value["csv_options"]),
            slice_filter=SliceFilter(**value["slice_filter"]) if value["slice_filter"] else None,
        )


def make_plan(job: SliceJob, listing: Listing | None = None) -> Plan:
    """Look into the files of the slice and cut the units.

    The plan of an input that matches nothing has no units and, when no file was found, no columns.

    :raises SliceError: for an input that cannot be read as what it claims to be, naming file and position.
    """
    url = job.resolved_input_path
    fs, _ = open_fs(url)
    listing = listing or list_input(job)
    files: Sequence[InputFile] = listing.files
    fmt = _format(files, job)
    reader = FORMATS[fmt](fs, job.column_types, job.csv_options)
    if fmt == "parquet" and job.column_types:
        raise SliceError(
            "column_types is for CSV and JSON Lines; a Parquet file has types of its own", kind="input"
        )
    files = [f for f in files if f.size or fmt == "parquet"]
    # A footer is little work and much waiting; a text is parsed as a whole, one file after another.
    with ThreadPoolExecutor(_LOOKS if fmt == "parquet" else 1) as pool:
        scans = list(pool.map(lambda f: reader.scan(f.path), files))
    in_folder = folder_column(job.slice_path)
    _refuse_other_slices(files, in_folder, job)
    schema = _unify(files, scans, drop=in_folder, lossless=fmt == "parquet")
    if files and (unknown := sorted(set(job.column_types) - set(schema.names))):
        raise SliceError(
            f"column_types names {unknown}, which the input does not have. Columns: {schema.names}",
            kind="input",
        )
    keep = slice_filter(job, files, schema)
    units: list[Unit] = []
    left = job.max_rows
    for file, scan in zip(files, scans, strict=True):
        header = tuple(scan.schema.names)
        for part in scan.ranges:
            rows = part.rows
            if keep is not None:
                found = _read(reader, file, header, part, schema, keep, [keep.column])
                rows = sum(t.num_rows for t in found)
            if left is not None:
                rows = min(rows, left)
                left -= rows
            if rows:
                units.append(Unit(file, header, part, rows))
    return Plan(
        url=url,
        format=fmt,
        source_schema=schema,
        columns=_selected(schema, job),
        units=tuple(units),
        input_hash=listing.hash,
        files=len(files),
        column_types=dict(job.column_types),
        csv_options=job.csv_options,
        slice_filter=keep,
    )


def _read(
    reader: Format,
    file: InputFile,
    header: Sequence[str],
    part: Range,
    schema: pa.Schema,
    keep: SliceFilter | None,
    columns: Sequence[str],
) -> Iterator[pa.Table]:
    wanted = list(dict.fromkeys([*columns, *([keep.column] if keep else [])]))
    shape = pa.schema([schema.field(n) for n in wanted])
    here = [n for n in wanted if n in header]
    for table in reader.read(file.path, part, header=header, schema=schema, columns=here):
        table = conform(table, shape, dict(file.partition))
        if keep is not None:
            table = table.filter(keep.mask(table.column(keep.column)))
        yield table.select(list(columns))


def _refuse_other_slices(files: Sequence[InputFile], column: str | None, job: SliceJob) -> None:
    for file in files:
        value = dict(file.partition).get(column or "", job.slice_key)
        if value != job.slice_key:
            raise SliceError(
                f"input_path {job.input_path} also holds {column}={value}, which is not of slice "
                f"{job.slice_key!r} ({file.path}): set slice_column={column!r}, or put {{slice}} into "
                "input_path",
                kind="input",
            )


def _format(files: Sequence[InputFile], job: SliceJob) -> FormatName:
    if job.input_format != "auto":
        return job.input_format
    by_format: dict[FormatName, str] = {}
    for file in files:
        fmt = format_of(file.path)
        if fmt is None:
            raise SliceError(
                f"{file.path}: its name does not say its format; set input_format to parquet, csv or jsonl",
                kind="input",
            )
        by_format.setdefault(fmt, file.path)
    if len(by_format) > 1:
        raise SliceError(
            f"input_path matches files of several formats: {', '.join(by_format.values())}; narrow it",
            kind="input",
        )
    return next(iter(by_format), "parquet")


def _unify(
    files: Sequence[InputFile], scans: Sequence[Scan], *, drop: str | None, lossless: bool
) -> pa.Schema:
    schema = pa.schema([])
    for file, scan in zip(files, scans, strict=True):
        try:
            schema = pa.unify_schemas([schema, scan.schema], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(f"{file.path} does not fit the files before it: {e}", kind="input") from e
    for file, scan in zip(files, scans, strict=True):
        for field in scan.schema if lossless else ():
            if _loses(field.type, schema.field(field.name).type):
                raise SliceError(
                    f"{file.path}: column {field.name!r} is {field.type}, and "
                    f"{schema.field(field.name).type} in other files, which would change values: give the "
                    "files one type",
                    kind="input",
                )
    # A column that a file lacks is null in its rows, whatever another file declares.
    for index, field in enumerate(schema):
        if any(field.name not in scan.schema.names for scan in scans):
            schema = schema.set(index, field.with_nullable(True))
    if drop in schema.names:
        raise SliceError(
            f"the input has a column {drop!r} and the slice folder would be named {drop}=...: readers of the "
            "whole table would find it twice. Name the folder yourself: output_path='.../slice={slice}'",
            kind="input",
        )
    for name in dict.fromkeys(name for file in files for name, _ in file.partition):
        if name != drop and name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def _loses(one: pa.DataType, wider: pa.DataType) -> bool:
    """Whether values may change on the way to the type that all files share."""
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(wider):
        return bool(one.unit != wider.unit)
    return bool(pa.types.is_integer(one) and pa.types.is_floating(wider))


def _selected(schema: pa.Schema, job: SliceJob) -> tuple[str, ...]:
    if job.columns is None or not schema.names:
        return tuple(schema.names)
    if missing := [c for c in job.columns if c not in schema.names]:
        raise SliceError(
            f"columns names {missing}, which the input does not have. Columns: {schema.names}", kind="input"
        )
    return job.columns
