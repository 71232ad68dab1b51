"""The plan of a slice: which units of which files its rows come from.

Deterministic: the same input files give the same plan, unit for unit and id for id. A unit is a contiguous
range of rows of one file; a row's id is (unit, offset), so no id column is asked of the user. The schema of
the rows is fixed here, once for all files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import fsspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.input_format import Format, Range, Scan
from airflow_provider_raydatallm.processor.read import FORMATS, FormatName, conform, format_of
from airflow_provider_raydatallm.processor.store import open_fs
from airflow_provider_raydatallm.spec import SliceJob, encode_slice_key

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class InputFile:
    """A file as it was when planned. `version` is its etag, or its modification time where there is none."""

    path: str
    size: int
    version: str
    partition: tuple[tuple[str, str | None], ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unit:
    """`rows` counts the slice's rows in the range: fewer than the range's when `slice_column` filters it."""

    id: str
    file: InputFile
    range: Range
    rows: int


@dataclass(frozen=True)
class SliceFilter:
    """Rows whose `column` equals the slice key. Dates and times are formatted first, in the slice's
    timezone."""

    column: str
    key: str
    format: str
    timezone: str

    def mask(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        kind = values.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            # Whole seconds: %S would print the fraction of finer units.
            text = pc.strftime(
                self._in_timezone(pc.floor_temporal(values, unit="second")), format=self.format
            )
        else:
            text = values.cast(pa.string())
        return pc.fill_null(pc.equal(text, self.key), False)

    def _in_timezone(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if getattr(values.type, "tz", None) is not None:
            return values.cast(pa.timestamp("s", tz=self.timezone), safe=False)
        values = values.cast(pa.timestamp("s"), safe=False)
        # A time without a zone is taken to be in the slice's; it matters to a format with a zone only.
        return pc.assume_timezone(values, self.timezone, ambiguous="earliest", nonexistent="earliest")


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
        reader = FORMATS[self.format](fs, self.column_types)
        left = unit.rows
        try:
            for table in _read(reader, unit.file, unit.range, self.source_schema, self.slice_filter, names):
                table = table.slice(0, left)
                left -= table.num_rows
                if table.num_rows:
                    yield table
        except pa.ArrowException as e:
            raise SliceError(f"{unit.file.path}, from row {unit.range.first_row + 1:,}: {e}") from e
        if left:
            raise SliceError(
                f"{unit.file.path} changed while the slice ran: {left} rows of {unit.rows} are gone",
                kind="run",
            )

    def locate(self, index: int, offset: int) -> str:
        """Where a row is, for people."""
        unit = self.units[index]
        if self.slice_filter is not None:  # offsets count the rows that the filter keeps
            return (
                f"row {offset + 1:,} of the slice in {unit.file.path}, from row {unit.range.first_row + 1:,}"
            )
        return f"row {unit.range.first_row + offset + 1:,} of {unit.file.path}"

    def check_unchanged(self) -> None:
        """:raises SliceError: when an input file is no longer the one that was planned."""
        fs, _ = open_fs(self.url)
        for file in dict.fromkeys(u.file for u in self.units):
            now = _describe(fs, file.path)
            if (now.size, now.version) != (file.size, file.version):
                raise SliceError(f"{file.path} changed while the slice ran; run it again", kind="run")


def make_plan(job: SliceJob) -> Plan:
    """List the input, scan its files, cut the units.

    The plan of an input that matches nothing has no units and, when no file was found, no columns.

    :raises SliceError: for an input that cannot be read as what it claims to be, naming file and position.
    """
    url = job.resolved_input_path
    fs, root = open_fs(url)
    files = _list_files(fs, root, job)
    fmt = _format(files, job)
    reader = FORMATS[fmt](fs, job.column_types)
    if fmt == "parquet" and job.column_types:
        raise SliceError("column_types is for CSV and JSON Lines; a Parquet file has types of its own")
    files = [f for f in files if f.size or fmt == "parquet"]
    scans = [reader.scan(f.path) for f in files]
    in_folder = folder_column(job.slice_path)
    _refuse_other_slices(files, in_folder, job)
    schema = _unify(files, scans, drop=in_folder, lossless=fmt == "parquet")
    if files and (unknown := sorted(set(job.column_types) - set(schema.names))):
        raise SliceError(
            f"column_types names {unknown}, which the input does not have. Columns: {schema.names}"
        )
    slice_filter = _slice_filter(job, files, schema)
    units: list[Unit] = []
    left = job.max_rows
    for file, scan in zip(files, scans, strict=True):
        file = InputFile(file.path, file.size, file.version, file.partition, tuple(scan.schema.names))
        for part in scan.ranges:
            rows = part.rows
            if slice_filter is not None:
                found = _read(reader, file, part, schema, slice_filter, [slice_filter.column])
                rows = sum(t.num_rows for t in found)
            if left is not None:
                rows = min(rows, left)
                left -= rows
            if rows:
                units.append(Unit(unit_id(file, part.first_row, part.rows), file, part, rows))
    return Plan(
        url=url,
        format=fmt,
        source_schema=schema,
        columns=_selected(schema, job),
        units=tuple(units),
        input_hash=_hash([fmt, vars(slice_filter) if slice_filter else None, *map(_identity, files)]),
        files=len(files),
        column_types=dict(job.column_types),
        slice_filter=slice_filter,
    )


def unit_id(file: InputFile, first_row: int, rows: int) -> str:
    """16 hex digits that name a range of rows of one version of one file."""
    return _hash([file.path, file.version, file.size, first_row, rows])


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _identity(file: InputFile) -> list[object]:
    return [file.path, file.size, file.version]


def _read(
    reader: Format,
    file: InputFile,
    part: Range,
    schema: pa.Schema,
    keep: SliceFilter | None,
    columns: Sequence[str],
) -> Iterator[pa.Table]:
    wanted = list(dict.fromkeys([*columns, *([keep.column] if keep else [])]))
    shape = pa.schema([schema.field(n) for n in wanted])
    here = [n for n in wanted if n in file.columns]
    for table in reader.read(file.path, part, header=file.columns, schema=schema, columns=here):
        table = conform(table, shape, dict(file.partition))
        if keep is not None:
            table = table.filter(keep.mask(table.column(keep.column)))
        yield table.select(list(columns))


def _list_files(fs: fsspec.AbstractFileSystem, root: str, job: SliceJob) -> list[InputFile]:
    """Files of the input in the order of their paths; names that begin with `_` or `.` are skipped."""
    root = root.rstrip("/")
    if any(c in root for c in "*?["):
        base = root[: min(root.index(c) for c in "*?[" if c in root)].rpartition("/")[0]
        found: dict[str, dict[str, Any]] = {}
        for path, info in fs.glob(root, detail=True).items():
            found.update(fs.find(path, detail=True) if info["type"] == "directory" else {path: info})
    else:
        base = root
        one_slice = f"{root}/{job.slice_column}={encode_slice_key(job.slice_key)}"
        within = one_slice if job.slice_column and fs.isdir(one_slice) else root
        found = fs.find(within, detail=True)
        if not found and fs.isfile(root):
            found = {root: fs.info(root)}
    own = open_fs(job.slice_path)[1].rstrip("/") + "/"
    files = []
    for path, info in sorted(found.items()):
        parts = path[len(base) :].strip("/").split("/") if path != base else [path.rpartition("/")[2]]
        if info.get("type") == "directory" or any(p.startswith(("_", ".")) for p in parts):
            continue
        if path.startswith(own):
            continue  # what this slice published before, where a glob matches it
        partition = _partition(parts[:-1])
        if job.slice_column in partition and partition[job.slice_column] != job.slice_key:
            continue
        files.append(InputFile(path, int(info["size"] or 0), _version(info), tuple(partition.items())))
    return files


def _describe(fs: fsspec.AbstractFileSystem, path: str) -> InputFile:
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return InputFile(path, -1, "")
    return InputFile(path, int(info["size"] or 0), _version(info))


def _version(info: Mapping[str, Any]) -> str:
    for name in ("ETag", "etag", "mtime", "LastModified", "updated", "last_modified", "created"):
        if info.get(name) is not None:
            return str(info[name]).strip('"')
    return ""


def _partition(folders: Sequence[str]) -> dict[str, str | None]:
    pairs = (f.split("=", 1) for f in folders if "=" in f)
    return {unquote(k): None if v == _HIVE_NULL else unquote(v) for k, v in pairs}


def folder_column(slice_path: str) -> str | None:
    """The column that a Hive reader takes from the slice folder's name, such as `ds` of `ds=2026-01-31`."""
    folder = slice_path.rpartition("/")[2]
    return unquote(folder.split("=", 1)[0]) if "=" in folder else None


def _refuse_other_slices(files: Sequence[InputFile], column: str | None, job: SliceJob) -> None:
    for file in files:
        value = dict(file.partition).get(column or "", job.slice_key)
        if value != job.slice_key:
            raise SliceError(
                f"input_path {job.input_path} also holds {column}={value}, which is not of slice "
                f"{job.slice_key!r} ({file.path}): set slice_column={column!r}, or put {{slice}} into "
                "input_path"
            )


def _format(files: Sequence[InputFile], job: SliceJob) -> FormatName:
    if job.input_format != "auto":
        return job.input_format
    by_format: dict[FormatName, str] = {}
    for file in files:
        fmt = format_of(file.path)
        if fmt is None:
            raise SliceError(
                f"{file.path}: its name does not say its format; set input_format to parquet, csv or jsonl"
            )
        by_format.setdefault(fmt, file.path)
    if len(by_format) > 1:
        raise SliceError(
            f"input_path matches files of several formats: {', '.join(by_format.values())}; narrow it"
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
            raise SliceError(f"{file.path} does not fit the files before it: {e}") from e
    for file, scan in zip(files, scans, strict=True):
        for field in scan.schema if lossless else ():
            if _loses(field.type, schema.field(field.name).type):
                raise SliceError(
                    f"{file.path}: column {field.name!r} is {field.type}, and "
                    f"{schema.field(field.name).type} in other files, which would change values: give the "
                    "files one type"
                )
    # A column that a file lacks is null in its rows, whatever another file declares.
    for index, field in enumerate(schema):
        if any(field.name not in scan.schema.names for scan in scans):
            schema = schema.set(index, field.with_nullable(True))
    if drop in schema.names:
        raise SliceError(
            f"the input has a column {drop!r} and the slice folder would be named {drop}=...: readers of the "
            "whole table would find it twice. Name the folder yourself: output_path='.../slice={slice}'"
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


def _slice_filter(job: SliceJob, files: Sequence[InputFile], schema: pa.Schema) -> SliceFilter | None:
    column = job.slice_column
    if column is None or not files or all(column in dict(f.partition) for f in files):
        return None
    if column not in schema.names:
        raise SliceError(
            f"slice_column {column!r} is neither a column of the input nor a Hive folder in its path. "
            f"Columns: {schema.names}"
        )
    return SliceFilter(column, job.slice_key, job.slice_format, job.slice_timezone)


def _selected(schema: pa.Schema, job: SliceJob) -> tuple[str, ...]:
    if job.columns is None or not schema.names:
        return tuple(schema.names)
    if missing := [c for c in job.columns if c not in schema.names]:
        raise SliceError(f"columns names {missing}, which the input does not have. Columns: {schema.names}")
    return job.columns
