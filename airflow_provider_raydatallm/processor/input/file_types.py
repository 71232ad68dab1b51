"""The types of a slice's files and of the Hive folders above them: grouped, unified, and with the values that
decide between types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.processor.input.formats.base import MAX_FIELDS, FileFormat, FileScan
from airflow_provider_raydatallm.processor.input.listing import InputFile
from airflow_provider_raydatallm.processor.input.types.declared import with_declared
from airflow_provider_raydatallm.processor.input.types.lossless import (
    ValueRange,
    holds_number,
    kind_of,
    rescaled,
)
from airflow_provider_raydatallm.processor.input.types.plain import (
    ColumnPath,
    children,
    leaves,
    path_text,
    plain_schema,
    type_at,
)
from airflow_provider_raydatallm.processor.input.types.unify import unify_schemas
from airflow_provider_raydatallm.processor.input.types.values import range_of

#: Kinds of numbers, one of which may be declared as another.
_NUMBERS = {"integer", "float", "decimal"}


class ScannedFile(NamedTuple):
    file: InputFile
    scan: FileScan

    @classmethod
    def of(cls, file: InputFile, scan: FileScan) -> ScannedFile:
        """A declared column that the file may lack is its folder's, where that gives one."""
        if scan.absent and (given := scan.absent & {name for name, _ in file.partition}):
            own = pa.schema([field for field in scan.schema if field.name not in given])
            scan = replace(scan, schema=own, absent=scan.absent - given)
        return cls(file, scan)

    @property
    def rows(self) -> int:
        """All of them, of whatever slice."""
        return sum(part.rows for part in self.scan.ranges)

    @property
    def columns(self) -> list[str]:
        """Its own, then those of its Hive folders."""
        return list(dict.fromkeys([*self.scan.schema.names, *(name for name, _ in self.file.partition)]))


@dataclass(frozen=True)
class FileGroup:
    """Files with the same types."""

    reader: FileFormat
    schema: pa.Schema
    files: Sequence[ScannedFile]

    @property
    def name(self) -> str:
        return self.files[0].file.path

    @property
    def floats_count(self) -> bool:
        return self.reader.floats_count

    def value_range(self, path: ColumnPath) -> ValueRange | None:
        return _around([self.reader.value_range(file, scan, path) for file, scan in self.files])


@dataclass(frozen=True)
class FolderColumn:
    """A column that Hive folders give to files that have none of its name.

    :ivar path: of one of these files.
    :ivar values: of all folders.
    """

    path: str
    schema: pa.Schema
    values: pa.Array

    floats_count = False

    @property
    def name(self) -> str:
        return f"the folder of {self.path}"

    def value_range(self, path: ColumnPath) -> ValueRange | None:
        return range_of(self.values)


@dataclass(frozen=True)
class FileTypes:
    """The types that all files of a slice have together, and their folders.

    :ivar schema: the wanted columns of all.
    """

    groups: Sequence[FileGroup | FolderColumn]
    schema: pa.Schema

    name = "the slice"

    @property
    def floats_count(self) -> bool:
        return all(group.floats_count for group in self.groups)

    def value_range(self, path: ColumnPath) -> ValueRange | None:
        target = type_at(self.schema, path)
        found = []
        for group in self.groups:
            source = type_at(group.schema, path)
            if source is not None and target is not None and (values := group.value_range(path)) is not None:
                found.append(rescaled(values, source, target))
        return _around(found)


def unify_files(
    reader: FileFormat,
    files: Sequence[ScannedFile],
    declared: Mapping[ColumnPath, pa.DataType],
    own_column: str | None,
) -> FileTypes:
    """Unifies the wanted columns of files and their folders.

    :param declared: types that the files' own ones give way to.
    :param own_column: of folders, that the rows do not get.
    :raises SliceError: when no type holds the values of a column.
    """
    groups: list[FileGroup | FolderColumn] = []
    for members in _by_types(files):
        scan = members[0].scan
        own = pa.schema([field for field in scan.schema if reader.options.wants(field.name)])
        _check_width(members[0].file.path, own)
        schema = plain_schema(with_declared(own, declared))
        _check_declared(members[0].file.path, own, declared)
        groups.append(FileGroup(reader, schema, members))
    folders = _folder_values(files, lambda name: name != own_column and reader.options.wants(name))
    groups.extend(_folder_column(name, paths, declared) for name, paths in folders.items())
    schema = unify_schemas([(group.schema, group) for group in groups])
    _check_cases(groups, pa.struct(list(schema)), ())
    return FileTypes(groups, schema)


def _by_types(files: Sequence[ScannedFile]) -> list[list[ScannedFile]]:
    """Files mostly share one schema, the very object where it is a footer's."""
    keys: dict[int, str] = {}
    groups: dict[str, list[ScannedFile]] = defaultdict(list)
    for one in files:
        schema = one.scan.schema
        key = keys.get(id(schema)) or keys.setdefault(id(schema), schema.to_string())
        groups[key].append(one)
    return list(groups.values())


def _folder_values(
    files: Sequence[ScannedFile], is_wanted: Callable[[str], bool]
) -> dict[str, dict[str | None, str]]:
    """The values of each column that folders give, and a file of each value.

    :raises SliceError: for folders that give a file two values.
    """
    columns: dict[str, dict[str | None, str]] = defaultdict(dict)
    for file, scan in files:
        given = dict(file.partition)
        for name, value in file.partition:
            if not is_wanted(name) or scan.schema.get_field_index(name) >= 0:
                continue
            if given[name] != value:
                raise SliceError(
                    f"{file.path} lies in the folders {name}={value} and {name}={given[name]}",
                    kind="input",
                    advice=f"Rename one, or leave the column {name!r} out with columns=",
                    place=Place(file=file.path, column=name),
                )
            columns[name].setdefault(value, file.path)
    return columns


def _folder_column(
    name: str, paths: Mapping[str | None, str], declared: Mapping[ColumnPath, pa.DataType]
) -> FolderColumn:
    """:param paths: of a file of each value."""
    kind = declared.get((name,), pa.string())
    values = []
    for value, path in paths.items():
        try:
            values.append(pa.scalar(value, pa.string()).cast(kind))
            if value is not None and pa.types.is_floating(kind) and not holds_number(kind, value):
                raise pa.ArrowInvalid(f"{value} is none of {kind}")
        except pa.ArrowException as e:
            raise SliceError(
                f"source.column_types makes column {name!r} {kind}, and {path} lies in the folder "
                f"{name}={value}: {e}",
                kind="input",
                place=Place(file=path, column=name),
            ) from e
    return FolderColumn(next(iter(paths.values())), pa.schema([(name, kind)]), pa.array(values, kind))


def _check_width(path: str, own: pa.Schema) -> None:
    if (fields := sum(1 for field in own for _ in leaves(field.type, ()))) > MAX_FIELDS:
        raise SliceError(
            f"{path} has {fields:,} columns, more than the {MAX_FIELDS:,} that a slice may have",
            kind="input",
            advice="Choose some with columns=",
            place=Place(file=path),
        )


def _check_cases(groups: Sequence[FileGroup | FolderColumn], kind: pa.DataType, path: ColumnPath) -> None:
    """Many readers do not tell names apart that differ in case only, also of a struct's fields.

    :raises SliceError: naming both, and files that have them.
    """
    parts = children(kind)
    by_case: dict[str, str] = {}
    for name, _ in parts if pa.types.is_struct(kind) else ():
        other = by_case.setdefault(name.casefold(), name)
        if other != name:
            one, two = (_holder(groups, (*path, step)) for step in (other, name))
            names = [repr(path_text((*path, step))) for step in (other, name)]
            # Keys of JSON may be data.
            shown = [f"in column {path[0]!r}", "another one"] if path else names
            raise SliceError(
                f"{one} has a {'field' if path else 'column'} {shown[0]} and "
                f"{'also' if one == two else two} {shown[1]}, which DuckDB and Spark take for one",
                kind="input",
                advice=f"Give them one name, or leave {'the column' if path else 'one'} out with columns=",
                place=Place(file=one, column=path[0] if path else other),
                row_texts=names if path else (),
            )
    for step, part in parts:
        _check_cases(groups, part, (*path, step))


def _holder(groups: Sequence[FileGroup | FolderColumn], path: ColumnPath) -> str:
    return next(group.name for group in groups if type_at(group.schema, path) is not None)


def _check_declared(path: str, own: pa.Schema, declared: Mapping[ColumnPath, pa.DataType]) -> None:
    """A declared type may be one that holds fewer values: whether it does is checked before rows are
    asked."""
    for field in own:
        for steps, kind in leaves(field.type, (field.name,)):
            target = declared.get(steps, kind)
            kinds = {kind_of(kind), kind_of(target)}
            if kind != target and len(kinds) > 1 and not kinds <= _NUMBERS:
                raise SliceError(
                    f"source.column_types makes column {path_text(steps)!r} {target}, and {path} has {kind} "
                    "there: a type of another kind would change its values",
                    kind="input",
                    place=Place(file=path, column=path_text(steps)),
                )


def _around(ranges: Sequence[ValueRange | None]) -> ValueRange | None:
    found = [values for values in ranges if values is not None]
    return ValueRange(min(v.low for v in found), max(v.high for v in found)) if found else None
