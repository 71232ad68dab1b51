"""A folder belongs to one table: a table takes its folders before its first row is paid for.

Readers of a table would meet the rows of one that lies in it, and two tables with one quarantine would remove
each other's rows. `store.marks` are the documents by which tables see each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_raydatallm.contract.addresses import holds
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import MARK, METADATA, QUARANTINE, SliceAddress
from airflow_provider_raydatallm.processor.storage import probe
from airflow_provider_raydatallm.processor.storage.filesystem import resolve
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import number_of_file
from airflow_provider_raydatallm.processor.store.marks import (
    IS_METADATA,
    IS_QUARANTINE,
    IS_TABLE,
    IS_TRIALS,
    Mark,
    Owner,
    add_task,
    find_owner,
    folders_above,
    names_task,
)
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Commits

_THREADS = 16


def take_folders(of: SliceAddress, task: Mapping[str, str] | None = None) -> None:
    """Tries the stores of a slice's table, and marks its folders as its own, unless that was done before. One
    request tells, and one more for each folder that was put elsewhere, and for the task.

    :param task: the Airflow task that the job is of, which the table then names.
    :raises SliceError: when a store cannot hold tables, or a folder belongs to another table, lies in one, or
        holds one. The other table's folders are as before then.
    """
    of_slice = SliceFolders.open(of.paths)
    probe.check_mounts(of_slice.staging, of_slice.table, of_slice.quarantine)
    folders = _TableFolders(of)
    if not folders.are_taken():
        _take(folders)
    if task is not None and not names_task(folders.staging, task):
        add_task(folders.staging, task)


def check_folders(of: SliceAddress) -> None:
    """Looks whose the folders of a slice's table are, as `take_folders` does, and takes none: for commands
    that remove or restore files.

    :raises SliceError: when a folder belongs to another table, lies in one, or holds one.
    """
    folders = _TableFolders(of)
    if not folders.are_taken():
        folders.check()


def _take(folders: _TableFolders) -> None:
    folders.check()
    targets = folders.targets
    probe.try_store(folders.staging, *targets)
    if folders.has_metadata_elsewhere:
        probe.check_store(folders.metadata)
    for mark in (*folders.marks_elsewhere, Mark(folders.staging.url, IS_TABLE)):
        mark.write()
    probe.remember(folders.staging, *targets)


class _TableFolders:
    """The folders of a slice's table, and the documents of those that are not beside it."""

    def __init__(self, of: SliceAddress) -> None:
        self._slice = of
        paths = of.table_paths
        self.table, self.metadata = Store(paths.table), Store(paths.metadata)
        self.staging, self.quarantine = Store(paths.staging), Store(paths.quarantine)
        self._address = resolve(paths.table)
        self.has_metadata_elsewhere = not self.metadata.is_folder(paths.staging)
        self.marks_elsewhere: list[Mark] = []
        if self.has_metadata_elsewhere:
            self.marks_elsewhere.append(Mark(paths.metadata, IS_METADATA, self._address))
        is_beside = self.quarantine.is_folder(f"{paths.table}{QUARANTINE}") or of.has_tables_for_slices
        if not is_beside:
            mark = Mark(f"{paths.quarantine}{METADATA}", IS_QUARANTINE, self._address)
            self.marks_elsewhere.append(mark)
        self.targets = (self.table, self.quarantine)
        #: With the argument that puts each elsewhere.
        self._read_by_others = {"output_path": self.table, "publish.quarantine_path": self.quarantine}
        self._all = {**self._read_by_others, "publish.metadata_path": self.metadata}

    def unmarked(self) -> list[Mark]:
        """Returns the documents that are not there."""
        return [mark for mark in self.marks_elsewhere if Mark.read(mark.folder) != mark]

    def are_taken(self) -> bool:
        """Whether an earlier run took them. Another table may lie behind a link to the table's folder
        since then."""
        is_link = self.table.is_local and os.path.islink(self.table.root)
        return not is_link and probe.has_passed(self.staging, *self.targets) and not self.unmarked()

    def check(self) -> None:
        """:raises SliceError: when one is another table's, lies in one, or holds one."""
        self.check_apart()
        self.check_neighbours()
        self.check_unmarked()

    def check_apart(self) -> None:
        """:raises SliceError: when one of the folders lies in another one that readers read."""
        for outer, folder in self._read_by_others.items():
            for argument, store in self._all.items():
                if argument != outer and holds(resolve(folder.url), resolve(store.url)):
                    raise SliceError(
                        f"{argument} {store.url} lies inside {outer} {folder.url}, whose readers would meet "
                        "it there",
                        kind="input",
                        advice="Give a folder outside",
                    )

    def check_neighbours(self) -> None:
        """:raises SliceError: when a folder is one of another table, lies in one, or holds one."""
        asked: dict[str, tuple[str, Store]] = {}
        for argument, store in self._all.items():
            for folder in folders_above(store.url):
                asked.setdefault(folder, (argument, store))
        with ThreadPoolExecutor(_THREADS) as pool:
            owners = list(pool.map(find_owner, asked))
        for (folder, (argument, store)), owner in zip(asked.items(), owners, strict=True):
            if owner is not None and not self._is_own(owner):
                relation = "is" if store.is_folder(folder) else "lies inside"
                raise SliceError(
                    f"{argument} {store.url} {relation} {owner}, as {owner.said_by} says",
                    kind="input",
                    advice="Give a folder that no other table has, or remove that file if the table is gone "
                    "or has moved here",
                )
        for argument, store in self._read_by_others.items():
            for name in store.tree(""):
                *folders, last = name.split("/")
                if last == MARK or any(folder.endswith(METADATA) for folder in folders):
                    raise SliceError(
                        f"{argument} {store.url} holds another table, whose rows its readers would meet: "
                        f"{store.path(name)} is of that table's metadata",
                        kind="input",
                        advice="Give a folder of its own",
                    )

    def _is_own(self, owner: Owner) -> bool:
        if owner.kind == IS_TABLE:  # a link to another table has the address of that one
            return resolve(owner.said_by) == resolve(f"{self.staging.url}/{MARK}")
        is_trial = self._slice.trial is not None and owner.kind == IS_TRIALS
        tables = {self._address, *([resolve(self._slice.output_table)] if is_trial else [])}
        return resolve(owner.table) in tables

    def check_unmarked(self) -> None:
        """A folder elsewhere that has no document may be that of a table of an older provider.

        :raises SliceError: when what it holds is not this table's.
        """
        for mark in self.unmarked():
            find = self._find_foreign_rows if mark.kind == IS_QUARANTINE else self._find_foreign_commit
            if (found := find()) is not None:
                argument = f"publish.{mark.kind}_path"
                raise SliceError(
                    f"{argument} holds {found}, which is not of the table {self.table.url}",
                    kind="input",
                    advice=f"Give each table a {argument} of its own",
                )

    def _find_foreign_rows(self) -> str | None:
        for folder in self.quarantine.names():
            names = [name for name in self.quarantine.names(folder) if number_of_file(name) is not None]
            if names:  # one slice tells
                commits = Commits.list(Store(f"{self.metadata.url}/{folder}"))
                own = {f.name for v in commits.versions(below=sys.maxsize) for f in v.quarantine}
                return None if own & set(names) else self.quarantine.path(f"{folder}/{names[0]}")
        return None

    def _find_foreign_commit(self) -> str | None:
        for folder in self.metadata.names():
            commits = Commits.list(Store(f"{self.metadata.url}/{folder}"))
            for version in commits.versions(below=sys.maxsize):
                table = version.body.get("table")
                is_own = table is None or Store(f"{self.table.url}/{folder}").is_folder(table)
                return None if is_own else f"the metadata of {table}"
        return None
