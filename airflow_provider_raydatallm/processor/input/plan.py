"""The plan of a slice: its units, which are contiguous ranges of rows of input files.

Deterministic: the same input files give the same plan, unit for unit and id for id. A row's id is (unit,
offset), so that users need no id column. The plan also fixes the schema of the rows, once for all files.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import encode_slice_key
from airflow_provider_raydatallm.contract.spec.slice_job import CsvOptions, SliceJob
from airflow_provider_raydatallm.processor.columns import MAX_UNIT_ROWS
from airflow_provider_raydatallm.processor.input.base import (
    FileFormat,
    FileScan,
    PlannedFile,
    RowRange,
    changed_error,
)
from airflow_provider_raydatallm.processor.input.formats import (
    FORMATS,
    FormatName,
    guess_format,
    unknown_format,
)
from airflow_provider_raydatallm.processor.input.listing import (
    InputFile,
    Listing,
    folder_column,
    get_input_file,
    list_input,
    short_hash,
)
from airflow_provider_raydatallm.processor.input.schema import conform, holds_pickles, unify_schemas
from airflow_provider_raydatallm.processor.input.slice_filter import SliceFilter, build_slice_filter
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs

#: Files that are opened or checked at once: the threads wait for storage rather than compute.
_STORAGE_THREADS = 16
#: Fields of a plan that are JSON as they are.
_JSON_FIELDS = ("url", "format", "input_hash", "files", "column_types")


@dataclass(frozen=True)
class Unit:
    """`rows` counts the slice's rows in the range: fewer than the range's when `slice_column` filters it."""

    file: PlannedFile
    range: RowRange
    rows: int

    @cached_property
    def id(self) -> str:
        """16 hex digits that identify these rows: of this version of the file, by this rule."""
        return short_hash([self.file.key, self.range.first_row, self.range.rows, self.rows])


@dataclass(frozen=True)
class Plan:
    """Units in input order, and how to read them. Small and picklable: every reading task gets it."""

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
        """Yields the slice's rows of a unit, in order, as tables of `columns` (all of them by default).

        :raises SliceError: when the file is not the planned one any more.
        """
        reader = FORMATS[self.format](open_fs(self.url)[0], self.column_types, self.csv_options)
        names = self.columns if columns is None else columns
        missing_rows = unit.rows
        try:
            for table in _read(reader, unit, self.source_schema, self.slice_filter, names):
                table = table.slice(0, missing_rows)
                missing_rows -= table.num_rows
                if table.num_rows:
                    yield table
        except pa.ArrowException as e:
            raise SliceError(
                f"{unit.file.path}, from row {unit.range.first_row + 1:,}: {e}", kind="input"
            ) from e
        if missing_rows:
            raise SliceError(
                f"{unit.file.path} changed while the slice ran: {missing_rows} rows of {unit.rows} are gone",
                kind="transient",
            )

    def locate(self, index: int, offset: int) -> str:
        """Describes where a row is, for people."""
        unit = self.units[index]
        first = unit.range.first_row
        if self.slice_filter is not None:  # offsets count the rows that the filter keeps
            return f"row {offset + 1:,} of the slice in {unit.file.path}, from row {first + 1:,}"
        return f"row {first + offset + 1:,} of {unit.file.path}"

    def check_unchanged(self, units: Iterable[Unit]) -> None:
        """:raises SliceError: when a file of these units is not the planned one any more."""
        fs, _ = open_fs(self.url)
        files = list(dict.fromkeys(u.file for u in units))
        with ThreadPoolExecutor(_STORAGE_THREADS) as pool:
            current_files = pool.map(lambda file: get_input_file(fs, file.path), files)
            for file, current in zip(files, current_files, strict=True):
                if current.identity != file.identity:
                    raise changed_error(file.path)

    def to_json(self) -> dict[str, Any]:
        files = list(dict.fromkeys(u.file for u in self.units))
        headers = list(dict.fromkeys(f.header for f in files))
        file_index, header_index = ({v: i for i, v in enumerate(values)} for values in (files, headers))
        return {
            **{name: getattr(self, name) for name in _JSON_FIELDS},
            "schema": base64.b64encode(self.source_schema.serialize()).decode(),
            "columns": self.columns,
            "csv_options": self.csv_options.model_dump(),
            "slice_filter": asdict(self.slice_filter) if self.slice_filter else None,
            "input_files": [astuple(replace(f, header=())) for f in files],
            "headers": headers,
            "header_of": [header_index[f.header] for f in files],
            "units": [[file_index[u.file], u.rows, *astuple(u.range)] for u in self.units],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """:raises ValueError: when that is not what `to_json` returns."""
        try:
            return cls._from_json(value)
        except (KeyError, TypeError, IndexError, AttributeError, pa.ArrowException) as e:
            raise ValueError(f"{type(e).__name__}: {e}") from e

    def is_of(self, listing: Listing) -> bool:
        """Whether it was made of these files and reads no others."""
        listed = {(f.path, f.size, f.version, f.partition) for f in listing.files}
        planned = {
            (f.path, f.size, f.version, f.partition) for f in dict.fromkeys(u.file for u in self.units)
        }
        return self.input_hash == listing.hash and planned <= listed

    @classmethod
    def _from_json(cls, value: Mapping[str, Any]) -> Plan:
        schema = base64.b64decode(value["schema"])
        if b"ARROW:extension:" in schema:  # whose code Arrow would run
            raise ValueError("its schema has an extension type")
        headers = [tuple(h) for h in value["headers"]]
        files = [
            PlannedFile(path, size, version, tuple((k, v) for k, v in partition), headers[header], *rest)
            for (path, size, version, partition, _, *rest), header in zip(
                value["input_files"], value["header_of"], strict=True
            )
        ]
        return cls(
            **{name: value[name] for name in _JSON_FIELDS},
            source_schema=pa.ipc.read_schema(pa.BufferReader(schema)),
            columns=tuple(value["columns"]),
            units=tuple(Unit(files[file], RowRange(*part), rows) for file, rows, *part in value["units"]),
            csv_options=CsvOptions(**value["csv_options"]),
            slice_filter=SliceFilter(**value["slice_filter"]) if value["slice_filter"] else None,
        )


def make_plan(job: SliceJob, listing: Listing | None = None) -> Plan:
    """Scans the slice's files and cuts them into units.

    The plan of an input without rows has no units and, when no file matches, no columns.

    :raises SliceError: for an input that cannot be read in its format, naming file and position.
    """
    url = job.resolved_input_path
    fs, _ = open_fs(url)
    listing = listing or list_input(job)
    fmt = _get_format(listing.files, job)
    reader = FORMATS[fmt](fs, job.column_types, job.csv_options)
    if fmt == "parquet" and job.column_types:
        raise SliceError("source.column_types is for CSV and JSON Lines: Parquet has its own", kind="input")
    files = [f for f in listing.files if f.size or fmt == "parquet"]
    # Reading a footer is mostly waiting; text is parsed as a whole, one file after another.
    with ThreadPoolExecutor(_STORAGE_THREADS if fmt == "parquet" else 1) as pool:
        scans = list(pool.map(lambda f: reader.scan(f), files))
    schema = _build_schema(files, scans, job, lossless=fmt == "parquet")
    columns = _select_columns(schema, job)
    row_filter = build_slice_filter(job, files, schema)
    _refuse_pickles(files, scans, [*columns, *([row_filter.column] if row_filter else [])])
    units: list[Unit] = []
    rows_left = job.max_rows
    planner = _FilePlanner(job, fmt, schema)
    for listed, scan in zip(files, scans, strict=True):
        file = planner.plan(listed, scan)
        for part in scan.ranges:
            unit = Unit(file, part, part.rows)
            rows = part.rows
            if row_filter is not None:
                rows = sum(t.num_rows for t in _read(reader, unit, schema, row_filter, [row_filter.column]))
            if rows_left is not None:
                rows = min(rows, rows_left)
                rows_left -= rows
            if rows > MAX_UNIT_ROWS:
                raise SliceError(
                    f"{file.path} has {rows:,} rows that are read together, from row {part.first_row + 1:,} "
                    f"on, and may have {MAX_UNIT_ROWS:,}: split the file",
                    kind="input",
                )
            if rows:
                units.append(replace(unit, rows=rows))
    return Plan(
        url=url,
        format=fmt,
        source_schema=schema,
        columns=columns,
        units=tuple(units),
        input_hash=listing.hash,
        files=len(files),
        column_types=dict(job.column_types),
        csv_options=job.csv_options,
        slice_filter=row_filter,
    )


def first_values(job: SliceJob, column: str) -> tuple[pa.DataType, list[Any]]:
    """Returns a column's type, and its first values in all of the input, whichever slice's they are."""
    plan = make_plan(SliceJob.model_validate({**job.model_dump(), "slice_column": None, "max_rows": 3}))
    tables = (table for unit in plan.units for table in plan.read(unit, [column]))
    return plan.source_schema.field(column).type, [v for t in tables for v in t.column(0).to_pylist()]


class _FilePlanner:
    """Gives files the keys of their units."""

    def __init__(self, job: SliceJob, fmt: FormatName, schema: pa.Schema) -> None:
        self._rule = [job.row_rule, job.slice_key if job.slice_column is not None else None, fmt]
        self._types = {field.name: str(field.type) for field in schema}
        self._rules: dict[tuple[str, ...], str] = {}

    def plan(self, file: InputFile, scan: FileScan) -> PlannedFile:
        header = tuple(scan.schema.names)
        # Only its own columns' types: another file that adds a column leaves these rows as they are.
        columns = (*header, *(name for name, _ in file.partition))
        if columns not in self._rules:
            types = {n: self._types[n] for n in sorted(columns) if n in self._types}
            self._rules[columns] = short_hash([self._rule, types])
        key = short_hash([file.identity, scan.digest, self._rules[columns]])
        return PlannedFile(**vars(file), header=header, digest=scan.digest, key=key)


def _refuse_pickles(files: Sequence[InputFile], scans: Sequence[FileScan], columns: Sequence[str]) -> None:
    schemas = {id(scan.schema): (file, scan.schema) for file, scan in zip(files, scans, strict=True)}
    for file, schema in schemas.values():
        for field in schema:
            if field.name in columns and holds_pickles(field):
                raise SliceError(
                    f"{file.path}: column {field.name!r} holds pickled Python objects, and reading one runs "
                    "whatever code it names: write the column with an Arrow type, or leave it out with "
                    "columns=",
                    kind="input",
                )


def _read(
    reader: FileFormat, unit: Unit, schema: pa.Schema, row_filter: SliceFilter | None, columns: Sequence[str]
) -> Iterator[pa.Table]:
    names = list(dict.fromkeys([*columns, *([row_filter.column] if row_filter else [])]))
    target = pa.schema([schema.field(n) for n in names])
    fields = pa.schema([field for field in target if field.name in unit.file.header])
    for table in reader.read(unit.file, unit.range, fields):
        table = conform(table, target, dict(unit.file.partition))
        if row_filter is not None:
            table = table.filter(row_filter.mask(table.column(row_filter.column)))
        yield table.select(list(columns))


def _get_format(files: Sequence[InputFile], job: SliceJob) -> FormatName:
    if job.input_format != "auto":
        return job.input_format
    by_format: dict[FormatName, str] = {}
    for file in files:
        fmt = guess_format(file.path)
        if fmt is None:
            raise unknown_format(file.path)
        by_format.setdefault(fmt, file.path)
    if len(by_format) > 1:
        raise SliceError(
            f"input_path matches files of several formats: {', '.join(by_format.values())}; narrow it",
            kind="input",
        )
    return next(iter(by_format), "parquet")


def _build_schema(
    files: Sequence[InputFile], scans: Sequence[FileScan], job: SliceJob, *, lossless: bool
) -> pa.Schema:
    """The files' columns, then those of Hive folders; without the slice folder's own column."""
    own_column = folder_column(job.slice_path)
    for file in files:
        for name, value in file.partition:
            is_other_slice = name == own_column and value != job.slice_key
            if is_other_slice or (job.slice_column is None and _is_other_day(value, job)):
                raise SliceError(
                    f"input_path {job.input_path} also holds {name}={value}, which is not of slice "
                    f"{job.slice_key!r} ({file.path}): set source.column={name!r}, or put {{slice}} into "
                    "input_path",
                    kind="input",
                )
    schema = unify_schemas([f.path for f in files], [s.schema for s in scans], lossless=lossless)
    same = [n for n in schema.names if own_column is not None and n.casefold() == own_column.casefold()]
    if same:
        raise SliceError(
            f"the input has a column {same[0]!r} and the slice folder would be named {own_column}=...: "
            "readers of the whole table would find it twice. Name the folder yourself: "
            "output_path='.../slice={slice}'",
            kind="input",
        )
    for name in dict.fromkeys(name for file in files for name, _ in file.partition):
        if name != own_column and name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))
    if files and (unknown := sorted(set(job.column_types) - set(schema.names))):
        raise SliceError(
            f"source.column_types names {unknown}, which the input does not have. Columns: {schema.names}",
            kind="input",
        )
    return schema


def _is_other_day(folder: str | None, job: SliceJob) -> bool:
    """Whether a Hive folder is named after a date as the slice is, and another one than the slice. An input
    path that holds the slice's key, or a pattern, chose its folders already."""
    path = job.resolved_input_path
    if folder in (None, job.slice_key) or encode_slice_key(job.slice_key) in path or set("*?[") & set(path):
        return False
    return _is_date(job.slice_key, job.slice_format) and _is_date(str(folder), job.slice_format)


def _is_date(text: str, date_format: str) -> bool:
    try:
        dt.datetime.strptime(text, date_format)
    except ValueError:
        return False
    return True


def _select_columns(schema: pa.Schema, job: SliceJob) -> tuple[str, ...]:
    if job.columns is None or not schema.names:
        return tuple(schema.names)
    if missing := [c for c in job.columns if c not in schema.names]:
        raise SliceError(
            f"columns names {missing}, which the input does not have. Columns: {schema.names}", kind="input"
        )
    return job.columns
