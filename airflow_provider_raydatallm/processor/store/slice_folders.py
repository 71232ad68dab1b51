"""The folders of one slice. Imports only fsspec, for the Airflow side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths, slice_paths
from airflow_provider_raydatallm.processor.storage.filesystem import resolve
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.marks import IS_QUARANTINE, find_owner, folders_above
from airflow_provider_raydatallm.processor.store.versions import Version, commit_name


@dataclass(frozen=True)
class SliceFolders:
    """The stores of one slice."""

    table: Store
    metadata: Store
    staging: Store
    quarantine: Store

    #: Quarantines that are known to be the table's.
    _own: set[str] = field(default_factory=set, compare=False, repr=False)

    @classmethod
    def open(cls, paths: SlicePaths) -> SliceFolders:
        return cls(_open(paths.table), _open(paths.metadata), _open(paths.staging), _open(paths.quarantine))

    def of(self, version: Version) -> SliceFolders:
        """The folders that show a version: it may have another quarantine than the job has now, since a table
        may be given another one.

        A commit alone names no folder: the quarantine is the one beside the table, or one whose own document
        says that it is this table's. The job's, too, where there is no document yet.

        :raises SliceError: when it is another table's, or nothing says whose.
        """
        self.check_table(version)
        beside = slice_paths(self.table.url).quarantine
        named: str = version.body.get("quarantine_folder") or beside
        if resolve(named) == resolve(beside):
            named = beside  # rather than where a link in its place leads
        elif named not in self._own:
            self._check_quarantine(version, named)
            self._own.add(named)
        return self if self.quarantine.is_folder(named) else replace(self, quarantine=_open(named))

    def check_table(self, version: Version) -> None:
        """:raises SliceError: when a version is another table's, whose metadata lies in the same folder."""
        table = version.body.get("table")
        if table is not None and not self.table.is_folder(table):
            raise SliceError(
                f"{self.metadata.url} holds the metadata of {table}, and this is {self.table.url}",
                kind="input",
                advice="Give each table a publish.metadata_path of its own",
            )

    def _check_quarantine(self, version: Version, named: str) -> None:
        table, _, own_name = self.table.url.rpartition("/")
        folder, _, name = named.rpartition("/")
        owner = find_owner(next(folders_above(folder)))
        if name == own_name:
            if owner is None and self.quarantine.is_folder(named):
                return
            if owner is not None and (owner.kind, owner.table) == (IS_QUARANTINE, resolve(table)):
                return
        whose = "nothing says whose it is" if owner is None else f"it is {owner}, as {owner.said_by} says"
        raise SliceError(
            f"{self.metadata.path(commit_name(version.number))} names the quarantine {named}, which is not "
            f"known to be of this table, {table}: {whose}",
            kind="input",
            advice="Give the publish.quarantine_path that the slice was published with, remove that document "
            "if the table has moved here, or set rerun.force=True to answer the slice again",
        )


def _open(url: str) -> Store:
    return Store(url, may_be_link=False)
