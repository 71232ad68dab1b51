"""What a slice's folder tells somebody who looks at it: its report, progress, versions and some rows.

The one who asks names a task and the folders that the task's record names. Whoever may edit that record must
not be shown another table's data, whatever else they may write: the table itself must name the task, in the
metadata beside it, and so must each version's commit. The folders are the table's own ones, wherever the
record says that they are. Read with the identity of the process that asks. Only `sample` needs pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from airflow_provider_raydatallm.contract.addresses import canonical
from airflow_provider_raydatallm.contract.slice_paths import MARK, SlicePaths, slice_paths
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.storage.filesystem import resolve, waiting_briefly
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.marks import IS_METADATA, Mark, find_owner, names_task
from airflow_provider_raydatallm.processor.store.run_record import read_progress
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion, read_staged
from airflow_provider_raydatallm.processor.store.versions import Commits, Version
from airflow_provider_raydatallm.processor.tables.confined_sample import confined_sample

#: How many versions are read: each is a request to the store.
_VERSIONS = 10
#: Of a commit; one of 10,000 files has fewer.
_COMMIT_BYTES = 4 << 20
#: Of a sample.
_COLUMNS, _SAMPLE_SECONDS = 60, 30.0


@dataclass(frozen=True)
class SliceView:
    """
    :param task: DAG and name of the task that asks.
    :param total_s: for how long storage is waited for.
    """

    paths: SlicePaths
    task: dict[str, str]
    total_s: float | None = None

    def resolved_table(self) -> str:
        """Returns the table's address, however it is written, with all links of a disk followed."""
        return resolve(self.paths.table.rpartition("/")[0])

    def versions(self) -> list[Version]:
        """Returns the newest versions, the latest first.

        :raises SliceError: when the newest commit cannot be read.
        :raises PermissionError: when the table does not name the task, or the task published none of them.
        """
        commits = Commits.list(self._folders.metadata)
        newest = list(islice(commits.versions(max_bytes=_COMMIT_BYTES), _VERSIONS))
        own = [v for v in newest if v.body.get("task") == self.task]
        if newest and not own:
            raise PermissionError("another task published this slice, or an older provider did")
        return own

    def progress(self) -> dict[str, Any] | None:
        """Returns the progress of the running or last failed run; None when the slice is published or new.

        :raises PermissionError: when the table does not name the task.
        """
        progress = read_progress(self._folders)
        return progress if progress is not None and progress.get("task") == self.task else None

    def sample(
        self, kind: Literal["published", "quarantined"], rows: int, staged: str | None = None
    ) -> tuple[list[str], list[list[str | None]]]:
        """Returns the names of columns and the first rows of the newest version, as text.

        :param staged: name of the staged version that is meant instead.
        :raises FileNotFoundError: when there is none.
        :raises SliceError: see `confined_sample`.
        """
        is_quarantine = kind == "quarantined"
        if staged is not None:
            waiting = self._staged(staged)
            version, located = waiting.version, waiting.locate(self._folders)
        else:
            newest = next(iter(self.versions()), None)
            if newest is None:
                raise FileNotFoundError("nothing is published")
            version, located = newest, open_sink(self._folders).locate(newest, quarantine=is_quarantine)
        files = [located[file] for file in (version.quarantine if is_quarantine else version.files)]
        return confined_sample(
            files, rows, _COLUMNS, _SAMPLE_SECONDS if self.total_s is None else self.total_s
        )

    def _staged(self, name: str) -> StagedVersion:
        """:raises FileNotFoundError, SliceError, PermissionError: as of published ones."""
        staged = read_staged(self._folders, name, _COMMIT_BYTES)
        if staged is None:
            raise FileNotFoundError("nothing is staged any more")
        if staged.version.body.get("task") != self.task:
            raise PermissionError("another task staged this version")
        return staged

    @cached_property
    def _folders(self) -> SliceFolders:
        """:raises PermissionError: when the table does not name the task, or the metadata not the table."""
        with waiting_briefly(self.total_s):
            table, _, folder = self.paths.table.rpartition("/")
            own, metadata_path = slice_paths(self.paths.table), None
            if resolve(self.paths.metadata) != resolve(own.metadata):
                metadata_path, _, of_slice = self.paths.metadata.rpartition("/")
                mark = Mark.read(metadata_path)
                is_own = mark is not None and (mark.kind, mark.table) == (IS_METADATA, resolve(table))
                if of_slice != folder or not is_own:
                    raise PermissionError("the metadata of this slice are not known to be of its table")
            # A document of the whole table; where each slice is a table, of the slice.
            named = [names_task(Store(url), self.task) for url in (own.of_table.staging, own.staging)]
            if True not in named and named != [None, None]:
                raise PermissionError("the slice's table names other tasks as its own, and not this one")
            if metadata_path is not None and named == [None, None]:
                raise PermissionError("the slice's table names no task, and has its metadata elsewhere")
            self._check_link(table, own.of_table.staging)
            return SliceFolders.open(slice_paths(self.paths.table, metadata_path))

    def _check_link(self, table: str, staging: str) -> None:
        """:raises PermissionError: when the table's folder leads to another table's."""
        if (target := resolve(table)) == canonical(table):
            return
        owner = find_owner(target)
        if owner is not None and resolve(owner.said_by) != resolve(f"{staging}/{MARK}"):
            raise PermissionError("the slice's table leads to the folder of another one")
