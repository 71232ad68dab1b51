"""A kind of sink as others may come: one Feather file a version, and a log whose highest entry says which of
them the table is. One create-only request adds an entry, so that an older one changes nothing. The package
knows nothing of it.

    <table>/ds=.../rows-000003-1f0c9a7e.feather   the rows, named as the staged version, never replaced
    <table>/ds=.../log-000003.json                points to the version's rows, with their checksums
    <table>.quarantine/ds=.../rows-....feather    rows that failed, switched by the same entry
    <table>.ray_llm/ds=.../originals/000003/      the committed files, for `locate`
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from airflow_provider_raydatallm.processor.sinks.base import (
    DamagedVersionError,
    Newest,
    Sink,
    SourceGoneError,
    StrayFiles,
    UnknownVersionError,
    remove_files,
)
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import PublishedFile, Version

ORIGINALS = "originals"
_ROWS = re.compile(r"rows-([0-9]{6})-[0-9a-f]{8}\.feather")
_ENTRY = re.compile(r"log-([0-9]{6})\.json")


class ToySink(Sink):
    def prepare(self, staged: str) -> None:
        pass

    def keep(self, version: Version) -> None:
        for file in version.all_files:
            try:
                self._take(version, file)
            except SourceGoneError:
                continue

    def show(self, newest: Newest) -> bool:
        version = newest.version
        self.fence(version)
        if self.is_shown(version) and newest.is_complete:
            return True
        if (later := max((n for n, _ in self.shown_numbers()), default=0)) > version.number:
            raise UnknownVersionError(entry_name(later))
        for file in version.all_files:
            self._take(version, file)
        files = {
            kind: self._write(version, store, files) for kind, store, files in self._tables(version) if files
        }
        self.folders.table.create_document(
            entry_name(version.number), {"staged": version.staged, "files": files}
        )
        if (entry := self._entry()) is None or entry["staged"] != version.staged:
            raise UnknownVersionError(entry_name(version.number))
        quarantines = {s.folders.quarantine.url: s.folders.quarantine for s in (self, newest.before) if s}
        for store in (self.folders.table, *quarantines.values()):
            older = [n for n in store.names() if 0 < _number_in(n) < version.number]
            remove_files(store, older)
        remove_files(self.folders.staging, (version.staged_name(f) for f in version.all_files))
        return False

    def is_shown(self, version: Version, before: Sink | None = None) -> bool:
        entry = self._entry()
        if entry is None or entry["staged"] != version.staged:
            return False
        for kind, store, files in self._tables(version):
            if files:
                sizes = {f.name: f.size for f in store.files()}
                name, (size, _) = rows_name(version.staged), entry["files"][kind]
                if name not in sizes:
                    return False
                if sizes[name] != size:
                    damage = f"has {sizes[name]:,} bytes and was committed with {size:,}"
                    raise DamagedVersionError(self.folders, version, name, damage)
        return True

    def check_content(self, version: Version) -> None:
        entry = self._entry()
        assert entry is not None
        for kind, store, files in self._tables(version):
            name = rows_name(version.staged)
            if files and store.sha256(name) != entry["files"][kind][1]:
                damage = "has other content than was committed"
                raise DamagedVersionError(self.folders, version, name, damage)

    def remove_kept(self, version: Version, kept: Collection[int]) -> None:
        for number, _ in self.kept():
            if number < version.number and number not in kept:
                self.folders.staging.remove(f"{ORIGINALS}/{number:06}")

    def kept(self) -> Sequence[tuple[int, str]]:
        staging = self.folders.staging
        return [(int(name), staging.path(f"{ORIGINALS}/{name}")) for name in staging.names(ORIGINALS)]

    def has_kept(self, version: Version) -> bool:
        names = self.folders.staging.tree(ORIGINALS)
        return all(f"{version.number:06}/{f.plain_name}" in names for f in version.all_files)

    def locate(self, version: Version, *, quarantine: bool = True) -> dict[PublishedFile, tuple[Store, str]]:
        staging = self.folders.staging
        found = {}
        for file in version.all_files if quarantine else version.files:
            for name in (original_name(version, file), version.staged_name(file)):
                if name.rpartition("/")[2] in staging.names(name.rpartition("/")[0]):
                    found[file] = (staging, name)
                    break
            else:
                raise FileNotFoundError(f"{file.name} of version {version.number} is gone")
        return found

    def shows_any(self) -> bool:
        return self._entry() is not None

    def shown_numbers(self) -> Sequence[tuple[int, str]]:
        table = self.folders.table
        return [(number, table.path(name)) for name in table.names() if (number := _number_in(name))]

    def stray_files(self) -> StrayFiles | None:
        names = self.folders.table.names()
        if not names:
            return None
        return StrayFiles(names[0], len(names), _number_in(names[0]) > 0)

    def _take(self, version: Version, file: PublishedFile) -> None:
        staging, name = self.folders.staging, original_name(version, file)
        if name.rpartition("/")[2] in staging.names(name.rpartition("/")[0]):
            return
        try:
            staging.place(staging, version.staged_name(file), name)
        except FileNotFoundError:
            raise SourceGoneError(file.name) from None

    def _write(self, version: Version, store: Store, files: Sequence[PublishedFile]) -> tuple[int, str]:
        staging = self.folders.staging
        tables = []
        for file in files:
            try:
                with staging.open(original_name(version, file)) as source:
                    tables.append(pq.read_table(source))
            except FileNotFoundError:
                raise SourceGoneError(file.name) from None
        sink = pa.BufferOutputStream()
        feather.write_feather(pa.concat_tables(tables), sink)
        content = sink.getvalue().to_pybytes()
        if rows_name(version.staged) not in store.names():
            store.create(rows_name(version.staged), content)
        return len(content), hashlib.sha256(content).hexdigest()

    def _tables(self, version: Version) -> list[tuple[str, Store, Sequence[PublishedFile]]]:
        folders = self.folders
        return [
            ("rows", folders.table, version.files),
            ("quarantine", folders.quarantine, version.quarantine),
        ]

    def _entry(self) -> Any:
        return newest_entry(self.folders.table)


def rows_name(staged: str) -> str:
    return f"rows-{staged}.feather"


def original_name(version: Version, file: PublishedFile) -> str:
    return f"{ORIGINALS}/{version.number:06}/{file.plain_name}"


def entry_name(number: int) -> str:
    return f"log-{number:06}.json"


def newest_entry(table: Store) -> Any:
    """The highest entry of the log, which is the table; None for an empty one."""
    for name in reversed([name for name in table.names() if _ENTRY.fullmatch(name)]):
        if (entry := table.read_document(name)) is not None:  # an older one is removed meanwhile
            return entry
    return None


def read_toy_table(table: str | Path, rows: str | Path) -> pa.Table:
    """The rows of a folder as the log in the table's folder has them.

    :raises FileNotFoundError: when there is no entry, or its version was replaced meanwhile.
    """
    entry = newest_entry(Store(str(table)))
    if entry is None:
        raise FileNotFoundError("the table shows no version")
    return feather.read_table(Path(rows, rows_name(entry["staged"])))


def _number_in(name: str) -> int:
    match = _ROWS.fullmatch(name) or _ENTRY.fullmatch(name)
    return int(match[1]) if match else 0
