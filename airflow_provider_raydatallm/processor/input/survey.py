"""Surveys a slice's input: scans its files, works out the types that all have together, and cuts them into
units.

What cannot be published is found here, before anything is paid: types that no type holds together, columns
that a file lacks or names otherwise, folders that contradict the rows in them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError, missing_column
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import MAX_UNIT_ROWS
from airflow_provider_raydatallm.processor.input.file_types import ScannedFile, unify_files
from airflow_provider_raydatallm.processor.input.folders import check_folders, check_rows_in_folder
from airflow_provider_raydatallm.processor.input.formats.base import FileFormat, FileScan, PlannedFile
from airflow_provider_raydatallm.processor.input.formats.options import ReadOptions
from airflow_provider_raydatallm.processor.input.formats.registry import FORMATS, FoundFormat, find_format
from airflow_provider_raydatallm.processor.input.listing import (
    InputFile,
    Listing,
    folder_column,
    list_input,
    short_hash,
)
from airflow_provider_raydatallm.processor.input.plan import STORAGE_THREADS, InputReader, Plan, Unit
from airflow_provider_raydatallm.processor.input.slice_filter import build_slice_filter, slice_filter
from airflow_provider_raydatallm.processor.input.types.codec import to_json
from airflow_provider_raydatallm.processor.input.types.declared import parse_path, undeclared
from airflow_provider_raydatallm.processor.input.types.known import (
    NO_COLUMNS,
    AnyValues,
    KnownColumns,
    published_types,
)
from airflow_provider_raydatallm.processor.input.types.plain import path_text, plain_type
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Survey:
    """The files of a slice.

    :ivar base: their plan, without units.
    :ivar only_in_table: its columns that other slices of the table have, and these files lack.
    """

    job: SliceJob
    files: Sequence[ScannedFile]
    base: Plan
    only_in_table: frozenset[str]

    @property
    def has_rows(self) -> bool:
        """Whether there are rows, of whatever slice."""
        return any(one.rows for one in self.files)

    @property
    def own(self) -> Plan:
        """`base` with the columns of these files only."""
        schemas = (self.base.source_schema, self.base.schema)
        source, published = (pa.schema([f for f in s if f.name not in self.only_in_table]) for s in schemas)
        return replace(self.base, source_schema=source, schema=published)

    def plan(self, request_columns: Iterable[str] | None = None) -> Plan:
        """Cuts the files into units.

        :param request_columns: those that requests read. With the slice's rule they decide whether rows of
            another run are these; by default all published ones do.
        :raises SliceError: when a file lacks one of them, or has too many rows that are read together.
        """
        plan, row_filter = self.base, self.base.slice_filter
        rule = [] if row_filter is None else [row_filter.column]
        requested = [] if request_columns is None else list(request_columns)
        self._check_columns([*requested, *rule])
        keys = _FileKeys(self.job, plan, [*(plan.columns if request_columns is None else requested), *rule])
        units: list[Unit] = []
        rows_left = self.job.source.max_rows
        with plan.open() as reader:
            for listed, scan in self.files:
                file = keys.planned(listed, scan)
                own = [Unit(file, part, part.rows) for part in scan.ranges if part.rows]
                self._check_rows_in_folders(reader, own)
                for unit in own:
                    rows = unit.rows if row_filter is None else reader.count_rows(unit)
                    if rows_left is not None:
                        rows = min(rows, rows_left)
                        rows_left -= rows
                    if rows > MAX_UNIT_ROWS:
                        raise SliceError(
                            f"{file.path} has {rows:,} rows that are read together, from row "
                            f"{unit.range.first_row + 1:,} on, and may have {MAX_UNIT_ROWS:,}",
                            kind="input",
                            advice="Split the file",
                            place=Place(file=file.path, row=unit.range.first_row + 1),
                        )
                    if rows:
                        units.append(replace(unit, rows=rows))
        return replace(plan, units=tuple(units))

    def _check_columns(self, read: Sequence[str]) -> None:
        """What a file lacks is null there, and no request may read that."""
        files = [one for one in self.files if one.rows]
        columns = [set(one.columns) for one in files]
        held = {name for one in self.files for name in one.columns}  # the others are folders' or declared
        for name in self.base.source_schema.names:
            lacking = [
                i for i, own in enumerate(columns) if name not in own and name not in files[i].scan.absent
            ]
            if not lacking or name not in held:
                continue
            path = files[lacking[0]].file.path
            where = f"{len(lacking):,} of {len(columns):,} files, such as {path}"
            if name not in read:
                logger.warning("column %r is missing in %s: it is null there", name, where)
                continue
            near = [
                own
                for own in sorted(columns[lacking[0]])
                if own.strip().casefold() == name.strip().casefold()
            ]
            fmt = FORMATS[self.base.format]
            absent = f"source.column_types says of a {fmt.title} column that it may be absent"
            raise SliceError(
                f"column {name!r}, which the request or the slice needs, is missing in {where}"
                f"{f', which has {near[0]!r}' if near else ''}",
                kind="input",
                advice=("Give all files that column", absent if fmt.may_lack_declared else ""),
                place=Place(file=path, column=name),
            )

    def _check_rows_in_folders(self, reader: InputReader, units: Sequence[Unit]) -> None:
        file = units[0].file if units else None
        for name, value in file.partition if file is not None else ():
            if file is not None and name in file.header and name in self.base.source_schema.names:
                is_key = name == self.job.source.column and value == self.job.slice_key
                check_rows_in_folder(reader, units, name, slice_filter(self.job, name) if is_key else None)


def survey_input(job: SliceJob, listing: Listing | None = None, known: KnownColumns = NO_COLUMNS) -> Survey:
    """
    :param known: columns that the slice's table has already.
    :raises SliceError: for an input that cannot be read in its format, naming file and position, or whose
        types do not go together.
    """
    listing = listing or list_input(job)
    found, options, reader, files = _scan(job, listing)
    reader.check_headers([(one.file.path, one.scan.schema.names) for one in files])
    _check_columns(files)
    _check_refused(files, options)
    all_columns = _all_columns(files)
    own_column = folder_column(job.slice_path)
    types = unify_files(reader, files, _declared(options, files, all_columns), own_column)
    columns = _select_columns(types.schema, all_columns, job)
    _check_slice_folder(columns, own_column)
    if not files:
        known = replace(known, bound=frozenset(known.schema.names))
    elif job.publish.on_schema_change == "accept":
        known = replace(known, bound=frozenset())
    unknown = [
        pa.field(name, pa.null())
        for name in known.schema.names
        if name in known.bound and name not in types.schema.names
    ]
    return Survey(
        job,
        files,
        Plan(
            url=job.resolved_input_path,
            format=found.name,
            options=options,
            source_schema=pa.schema([*types.schema, *unknown]),
            schema=published_types(columns, known, types),
            units=(),
            input_hash=listing.hash,
            files=len(files),
            slice_filter=build_slice_filter(job, [one.file for one in files], all_columns, types.schema),
        ),
        frozenset(field.name for field in unknown),
    )


def find_columns(job: SliceJob, listing: Listing) -> tuple[list[str], bool]:
    """Returns the columns that the files have, and whether their values are texts where no type is declared.

    :raises SliceError: for an input that cannot be read in its format.
    """
    _, _, reader, files = _scan(job, listing)
    return _all_columns(files), reader.is_untyped


def make_plan(job: SliceJob, listing: Listing | None = None) -> Plan:
    """The plan of a request that reads all columns. One of an input without rows has no units and, when no
    file matches, no columns."""
    return survey_input(job, listing).plan()


def first_values(job: SliceJob, column: str) -> tuple[pa.DataType, list[Any]]:
    """Returns a column's type, and its first values in all of the input, whichever slice's they are."""
    plan = make_plan(job.changed(source={"column": None, "max_rows": 3}))
    tables = (table for unit in plan.units for table in plan.read(unit, [column]))
    return plan.source_schema.field(column).type, [v for t in tables for v in t.column(0).to_pylist()]


def with_table_types(plan: Plan, known: KnownColumns) -> Plan:
    """The plan with the types that its table has by now, where they hold every value of the plan's own."""
    source = {field.name: field.type for field in plan.source_schema}
    own = pa.schema([f.with_type(pa.null()) if pa.types.is_null(source[f.name]) else f for f in plan.schema])
    return replace(plan, schema=published_types(own, replace(known, bound=frozenset()), AnyValues()))


def _scan(job: SliceJob, listing: Listing) -> tuple[FoundFormat, ReadOptions, FileFormat, list[ScannedFile]]:
    fmt = job.source.format
    found = find_format(f.path for f in listing.files) if fmt == "auto" else FoundFormat(fmt)
    options = ReadOptions.of(job, found.csv)
    reader = FORMATS[found.name](open_fs(job.resolved_input_path)[0], options)
    listed = [f for f in listing.files if f.size or not reader.may_be_empty]
    check_folders(job, listed)
    with ThreadPoolExecutor(1 if reader.scans_all else STORAGE_THREADS) as pool:
        files = [ScannedFile.of(*one) for one in zip(listed, pool.map(reader.scan, listed), strict=True)]
    return found, options, reader, files


def _all_columns(files: Sequence[ScannedFile]) -> list[str]:
    return list(dict.fromkeys(name for one in files for name in one.columns))


class _FileKeys:
    """Gives files the keys of their units."""

    def __init__(self, job: SliceJob, plan: Plan, read: Iterable[str]) -> None:
        """:param read: columns whose types decide how rows read."""
        self._rule = [job.row_rule, job.slice_key if job.source.column is not None else None, plan.format]
        types = {field.name: to_json(field.type) for field in plan.source_schema}
        self._types = {name: types[name] for name in sorted(set(read)) if name in types}
        self._rules: dict[tuple[str, ...], str] = {}

    def planned(self, file: InputFile, scan: FileScan) -> PlannedFile:
        header = tuple(scan.schema.names)
        # Only its own columns' types: another file that adds a column leaves these rows as they are.
        columns = (*header, *(name for name, _ in file.partition))
        if columns not in self._rules:
            own = set(columns)
            types = {name: kind for name, kind in self._types.items() if name in own}
            self._rules[columns] = short_hash([self._rule, types])
        key = short_hash([file.identity, scan.digest, self._rules[columns]])
        return PlannedFile(**vars(file), header=header, digest=scan.digest, notes=scan.notes, key=key)


def _check_columns(files: Sequence[ScannedFile]) -> None:
    if any(one.scan.schema.names for one in files):
        return
    for one in files:
        if one.rows:
            raise SliceError(
                f"{one.file.path} has {one.rows:,} rows, and no file has a column",
                kind="input",
                place=Place(file=one.file.path),
            )


def _check_refused(files: Sequence[ScannedFile], options: ReadOptions) -> None:
    for file, scan in files:
        for name, refusal in scan.refused.items():
            if options.wants(name):
                raise SliceError(
                    f"{file.path}: column {name!r} {refusal.why}",
                    kind="input",
                    advice=f"{refusal.advice}, or leave it out with columns=",
                    place=Place(file=file.path, column=name),
                )


def _declared(
    options: ReadOptions, files: Sequence[ScannedFile], columns: Sequence[str]
) -> dict[Any, pa.DataType]:
    """Declared types by their paths.

    :raises SliceError: for a path that no file has.
    """
    declared = {parse_path(text, columns): plain_type(kind) for text, kind in options.types.items()}
    nowhere = {path: kind for path, kind in declared.items() if files}
    for file, scan in files:
        own = [field for field in scan.schema if field.name not in scan.absent]
        folders = [pa.field(name, pa.string()) for name, _ in file.partition if name in options.types]
        found = pa.schema([*own, *folders])
        nowhere = {path: nowhere[path] for path in undeclared(nowhere, found)}
    if nowhere:
        unknown = [path_text(path) for path in nowhere]
        raise missing_column(
            f"source.column_types names {unknown}, which the input does not have",
            unknown[0],
            [name for name in columns if name not in unknown],  # those of declared types are among them
        )
    return declared


def _select_columns(fields: pa.Schema, columns: Sequence[str], job: SliceJob) -> pa.Schema:
    if job.columns is None or not columns:
        return fields
    if missing := [c for c in job.columns if c not in columns]:
        raise missing_column(
            f"columns names {missing}, which the input does not have",
            missing[0],
            columns,
        )
    by_name = {field.name: field for field in fields}
    return pa.schema([by_name[name] for name in job.columns])


def _check_slice_folder(columns: pa.Schema, own_column: str | None) -> None:
    same = [n for n in columns.names if own_column is not None and n.casefold() == own_column.casefold()]
    if same:
        raise SliceError(
            f"the input has a column {same[0]!r} and the slice folder would be named {own_column}=...: "
            "readers of the whole table would find it twice",
            kind="input",
            advice="Name the folder yourself: output_path='.../slice={slice}'",
            place=Place(column=same[0]),
        )
