"""Lists a slice's input files as they are now; docs/input.md has the rules.

No file is opened, so that checking whether a finished slice's input changed costs only a listing. Folders of
other slices are not listed. Imports only fsspec: the Airflow side lists too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import unquote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.slice_paths import METADATA
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.disk import disk_version
from airflow_provider_raydatallm.processor.input.own_folders import OwnFolders
from airflow_provider_raydatallm.processor.input.pattern import Pattern
from airflow_provider_raydatallm.processor.input.trees import Facts, Tree, open_tree
from airflow_provider_raydatallm.processor.storage.filesystem import explaining, file_version
from airflow_provider_raydatallm.processor.storage.objects import Entry

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: Folders that are listed at once: the threads wait for storage.
_THREADS = 16


@dataclass(frozen=True)
class InputFile:
    """A file as it was when listed. `version` changes with its content: see `describe_object` and
    `disk_version`."""

    path: str
    size: int
    version: str
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def identity(self) -> list[object]:
        return [self.path, self.size, self.version]


@dataclass(frozen=True)
class Listing:
    """Input files, sorted by path. How they are read is the fingerprint's matter (`SliceJob.row_rule`)."""

    files: tuple[InputFile, ...]

    @cached_property
    def hash(self) -> str:
        """16 hex digits: equal for an unchanged input."""
        return short_hash([f.identity for f in self.files])


def short_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def list_input(job: SliceJob) -> Listing:
    """Lists the files of the slice.

    :raises SliceError: when the input cannot be listed, or holds what is no file to read.
    """
    with explaining("list", job.resolved_input_path):
        tree, names = open_tree(job.resolved_input_path)
        found = _select_files(tree, _Rules.of(job, tree, Pattern(names)))
        files = [
            _input_file("/".join((tree.root, *file.parts)), facts, file.parts[:-1])
            for file, facts in zip(found, tree.facts(found), strict=True)
        ]
        if not files and not names and not _is_hidden(os.path.basename(tree.root)):
            root_file = tree.root_file()
            files = [_input_file(tree.root, root_file, ())] if root_file is not None else []
    return Listing(tuple(sorted(files, key=lambda file: file.path)))


def get_input_file(fs: fsspec.AbstractFileSystem, path: str) -> InputFile:
    """The file as it is now; of size -1 when it is gone."""
    try:
        if isinstance(fs, LocalFileSystem):
            return describe_disk_file(path, os.stat(path))
        return describe_object(path, fs.info(path))
    except FileNotFoundError:
        return InputFile(path, -1, "")


def describe_disk_file(path: str, status: os.stat_result) -> InputFile:
    return InputFile(path, status.st_size, disk_version(path, status))


def describe_object(path: str, info: Mapping[str, Any]) -> InputFile:
    """A file of a store: its version is the object's generation, its etag, or else its modification time."""
    generation = info.get("generation")
    version = str(generation) if generation is not None else file_version(dict(info))
    return InputFile(path, int(info["size"] or 0), version)


def folder_column(slice_path: str) -> str | None:
    """The column that a Hive reader derives from the slice folder's name, such as `ds` of `ds=2026-01-31`."""
    folder = slice_path.rpartition("/")[2]
    return unquote(folder.split("=", 1)[0]) if "=" in folder else None


class _Place(NamedTuple):
    """A folder or file below the root: its names, how far they follow the pattern, and whether one of them is
    the Hive folder of the slice."""

    names: tuple[str, ...]
    at: frozenset[int]
    is_in_slice: bool = False


@dataclass(frozen=True)
class _Rules:
    """Which files below the root are the slice's.

    :ivar folder: column and value of the slice's Hive folders; None without `source.column`.
    """

    pattern: Pattern
    own: OwnFolders
    folder: tuple[str, str | None] | None

    @classmethod
    def of(cls, job: SliceJob, tree: Tree, pattern: Pattern) -> _Rules:
        folder = (job.source.column, job.slice_key) if job.source.column is not None else None
        return cls(pattern, OwnFolders(job, tree.address), folder)

    def enter(self, place: _Place, name: str, *, is_folder: bool) -> _Place | None:
        """Returns the place of a name in a folder; None where it is not the slice's, with all below it."""
        names, at = (*place.names, name), self.pattern.follow(place.at, name)
        if not at or _is_hidden(name):
            return None
        if not is_folder:
            return _Place(names, at) if self.pattern.is_match(at) else None
        pair = _hive_pair(name)
        is_of_column = self.folder is not None and pair is not None and pair[0] == self.folder[0]
        if (is_of_column and pair != self.folder) or name.endswith(METADATA) or self.own.hold(names):
            return None
        return _Place(names, at, place.is_in_slice or is_of_column)

    def enter_all(self, place: _Place | None, names: Sequence[str]) -> _Place | None:
        for name in names:
            place = place and self.enter(place, name, is_folder=True)
        return place

    def takes_all(self, place: _Place) -> bool:
        """Whether a listing of all files below a folder has little that is not the slice's."""
        is_whole = self.folder is None or place.is_in_slice
        return is_whole and self.pattern.may_match_at_any_depth(place.at)


def _select_files(tree: Tree, rules: _Rules) -> list[Entry]:
    """Walks down level by level, and lists the folders of a level at once."""
    files: list[Entry] = []
    folders = [_Place((), rules.pattern.start)] if not rules.own.hold_root else []
    with ThreadPoolExecutor(_THREADS) as pool:
        while folders:
            found = pool.map(
                lambda folder: tree.entries(folder.names, deep=tree.is_flat and rules.takes_all(folder)),
                folders,
            )
            level, folders = list(zip(folders, found, strict=True)), []
            for folder, entries in level:
                known: dict[tuple[str, ...], _Place | None] = {}
                for entry in entries:
                    *above, name = entry.parts
                    if (key := tuple(above)) not in known:
                        known[key] = rules.enter_all(folder, above)
                    parent = known[key]
                    place = parent and rules.enter(parent, name, is_folder=entry.is_folder)
                    if place is not None and entry.is_folder:
                        folders.append(place)
                    elif place is not None:
                        files.append(entry._replace(parts=place.names))
    return files


def _input_file(path: str, facts: Facts, folders: Sequence[str]) -> InputFile:
    """:raises SliceError: for a path that is not UTF-8, or a Hive folder that escapes what is not."""
    try:
        path.encode()
        for folder in folders:
            unquote(folder if "=" in folder else "", errors="strict")
    except UnicodeError as e:
        shown = path.encode(errors="backslashreplace").decode()
        raise SliceError(
            f"{shown}: the name is not UTF-8 ({e})",
            kind="input",
            advice="Rename it",
            place=Place(file=shown),
        ) from e
    if isinstance(facts, os.stat_result):
        file = describe_disk_file(path, facts)
    else:
        file = describe_object(path, facts)
    pairs = (_hive_pair(folder) for folder in folders)
    return replace(file, partition=tuple(pair for pair in pairs if pair is not None))


def _hive_pair(folder: str) -> tuple[str, str | None] | None:
    """The column and the value that a folder's name has for Hive readers."""
    column, separator, value = folder.partition("=")
    if not separator:
        return None
    return unquote(column), None if value == _HIVE_NULL else unquote(value)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))
