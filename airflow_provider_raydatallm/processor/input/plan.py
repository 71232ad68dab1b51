"""The plan of a slice: its units, which are contiguous ranges of rows of input files.

Deterministic: the same input files give the same plan, unit for unit and id for id. A row's id is (unit,
offset), so that users need no id column. The plan also fixes the types of the rows, once for all files.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.input_formats import FormatName
from airflow_provider_raydatallm.processor.columns import MAX_UNIT_ROWS
from airflow_provider_raydatallm.processor.input.formats.base import (
    FileFormat,
    PlannedFile,
    RangeReader,
    RowRange,
    changed_error,
)
from airflow_provider_raydatallm.processor.input.formats.options import ReadOptions
from airflow_provider_raydatallm.processor.input.formats.registry import FORMATS
from airflow_provider_raydatallm.processor.input.listing import Listing, get_input_file, short_hash
from airflow_provider_raydatallm.processor.input.problems import split_column
from airflow_provider_raydatallm.processor.input.slice_filter import SliceFilter
from airflow_provider_raydatallm.processor.input.types.codec import schema_from_json, schema_to_json
from airflow_provider_raydatallm.processor.input.types.convert import conform
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs

#: Files that are opened or checked at once: the threads wait for storage rather than compute.
STORAGE_THREADS = 16
#: That are hashed at once.
_HASHED_BYTES = 1 << 20
#: Fields of a plan that are JSON as they are.
_JSON_FIELDS = ("url", "format", "input_hash", "files")


@dataclass(frozen=True)
class Unit:
    """`rows` counts the slice's rows in the range: fewer than the range's when `source.column` filters it."""

    file: PlannedFile
    range: RowRange
    rows: int

    @cached_property
    def id(self) -> str:
        """16 hex digits that identify these rows: of this version of the file, by this rule."""
        return short_hash([self.file.key, self.range.first_row, self.range.rows, self.rows])


@dataclass(frozen=True)
class Plan:
    """Units in input order, and how to read them. Small and picklable: every reading task gets it.

    :ivar source_schema: types of all columns that may be read, as all files of the slice have them together.
    :ivar schema: the columns that the published rows keep, as the table has them.
    """

    url: str
    format: FormatName
    options: ReadOptions
    source_schema: pa.Schema
    schema: pa.Schema
    units: tuple[Unit, ...]
    input_hash: str
    files: int
    slice_filter: SliceFilter | None = None

    @cached_property
    def rows(self) -> int:
        return sum(u.rows for u in self.units)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    @contextlib.contextmanager
    def open(self) -> Iterator[InputReader]:
        """Opens the input, to read units one after the other: a file stays open for all of its units."""
        reader = self.reader()
        try:
            yield reader
        finally:
            reader.close()

    def reader(self) -> InputReader:
        return InputReader(self)

    def read(self, unit: Unit, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Reads one unit. See `InputReader.read`."""
        with self.open() as reader:
            yield from reader.read(unit, columns)

    def locate(self, index: int, offset: int) -> str:
        """Describes where a row is, for people."""
        return self.locate_in(self.units[index], offset)

    def locate_in(self, unit: Unit, offset: int) -> str:
        first = unit.range.first_row
        if self.slice_filter is not None:  # offsets count the rows that the filter keeps
            return f"row {offset + 1:,} of the slice in {unit.file.path}, from row {first + 1:,}"
        return f"row {first + offset + 1:,} of {unit.file.path}"

    def place_in(self, unit: Unit, offset: int | None = None) -> Place:
        """
        :param offset: of a row, counted as `locate_in` counts.
        """
        is_known = offset is not None and self.slice_filter is None
        return Place(file=unit.file.path, row=unit.range.first_row + (offset or 0) + 1 if is_known else None)

    def check_unchanged(self, units: Iterable[Unit]) -> None:
        """:raises SliceError: when a file of these units is not the planned one any more."""
        fs, _ = open_fs(self.url)
        files = list(dict.fromkeys(u.file for u in units))
        with ThreadPoolExecutor(STORAGE_THREADS) as pool:
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
            "options": self.options.to_json(),
            "source_schema": schema_to_json(self.source_schema),
            "schema": schema_to_json(self.schema),
            "slice_filter": asdict(self.slice_filter) if self.slice_filter else None,
            "input_files": [
                [f.path, f.size, f.version, f.partition, f.digest, f.notes, f.key] for f in files
            ],
            "headers": headers,
            "header_of": [header_index[f.header] for f in files],
            "units": [
                [file_index[u.file], u.rows, u.range.first_row, u.range.rows, *u.range.position]
                for u in self.units
            ],
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
        headers = [tuple(h) for h in value["headers"]]
        files = [
            PlannedFile(
                path,
                size,
                version,
                partition=tuple((k, v) for k, v in partition),
                header=headers[header],
                digest=digest,
                notes=tuple(notes),
                key=key,
            )
            for (path, size, version, partition, digest, notes, key), header in zip(
                value["input_files"], value["header_of"], strict=True
            )
        ]
        return cls(
            **{name: value[name] for name in _JSON_FIELDS},
            options=ReadOptions.from_json(value["options"]),
            source_schema=schema_from_json(value["source_schema"]),
            schema=schema_from_json(value["schema"]),
            units=tuple(_unit(FORMATS[value["format"]], files, *numbers) for numbers in value["units"]),
            slice_filter=SliceFilter(**value["slice_filter"]) if value["slice_filter"] else None,
        )


def _unit(
    read_by: type[FileFormat],
    files: Sequence[PlannedFile],
    file: int,
    rows: int,
    first: int,
    of_range: int,
    *position: int,
) -> Unit:
    """:raises ValueError: for a number that no plan has."""
    numbers = (file, rows, first, of_range, *position)
    are_valid = all(type(one) is int for one in numbers) and len(position) in read_by.position_sizes
    if not (are_valid and file >= 0 and 0 <= rows <= MAX_UNIT_ROWS):
        raise ValueError(f"it has a unit of {rows!r} rows of file {file!r}, at {position!r}")
    return Unit(files[file], RowRange(first, of_range, position), rows)


class InputReader:
    """Reads units of a plan. A file is opened for the first of its units, and closed for that of another
    file."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._format: FileFormat = FORMATS[plan.format](open_fs(plan.url)[0], plan.options)
        self._opened = contextlib.ExitStack()
        self._file: PlannedFile | None = None
        self._read_range: RangeReader | None = None

    def close(self) -> None:
        self._file = self._read_range = None
        self._opened.close()

    def read(self, unit: Unit, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields the slice's rows of a unit, in order, as tables of `columns` (all of them by default), with
        the types that all files have together.

        :raises SliceError: when the file is not the planned one any more.
        """
        names = list(self._plan.columns if columns is None else columns)
        missing_rows = unit.rows
        for table in self._slice_rows(unit, names):
            table = table.slice(0, missing_rows)
            missing_rows -= table.num_rows
            if table.num_rows:
                yield table
        if missing_rows:
            raise SliceError(
                f"{unit.file.path} changed while the slice ran: {missing_rows} rows of {unit.rows} are gone",
                kind="transient",
                place=Place(file=unit.file.path),
            )

    def content_hash(self, file: PlannedFile) -> str:
        """Returns the SHA-256 of its bytes."""
        digest = hashlib.sha256()
        with self._format.open(file) as (handle, _):
            while block := handle.read(_HASHED_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def count_rows(self, unit: Unit) -> int:
        """Counts the slice's rows in a unit's range."""
        return sum(table.num_rows for table in self._slice_rows(unit, []))

    def read_range(self, unit: Unit, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yields all rows of a unit's range, also those of other slices."""
        target = pa.schema([self._plan.source_schema.field(name) for name in columns])
        header = set(unit.file.header)
        # A column without a type has no value, or is one of the table's that is left out here.
        fields = pa.schema([f for f in target if f.name in header and not pa.types.is_null(f.type)])
        constants = dict(unit.file.partition)
        try:
            for table in self._open(unit.file)(unit.range, fields):
                yield conform(table, target, constants)
        except Exception as e:
            self._file = self._read_range = None
            if self._opened.__exit__(type(e), e, e.__traceback__):  # which tells damage from another file
                return
            if isinstance(e, pa.ArrowException):
                column, problem = split_column(str(e).strip())
                what = "the rows" if column is None else f"column {column!r}"
                raise SliceError(
                    f"{unit.file.path}: {what} cannot be read, from row {unit.range.first_row + 1:,} on",
                    kind="input",
                    place=Place(file=unit.file.path, column=column),
                    row_texts=(problem,),
                ) from e
            raise

    def _slice_rows(self, unit: Unit, names: Sequence[str]) -> Iterator[pa.Table]:
        row_filter = self._plan.slice_filter
        if row_filter is None:
            yield from self.read_range(unit, names)
            return
        for table in self.read_range(unit, list(dict.fromkeys([*names, row_filter.column]))):
            yield table.filter(row_filter.mask(table.column(row_filter.column))).select(names)

    def _open(self, file: PlannedFile) -> RangeReader:
        if self._read_range is None or self._file != file:
            self.close()
            self._read_range = self._opened.enter_context(self._format.reader(file))
            self._file = file
        return self._read_range
