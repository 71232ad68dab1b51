"""A folder of Parquet files and an empty `_SUCCESS`, which any reader of Parquet may read as it is.

    part-000003-00000-of-00002-1f0c9a7e.parquet   the version's files, under the names that its commit has
    _SUCCESS                                      while all files of one version are there, and no others

Rows that failed lie in a folder of their own, the quarantine, which is switched with the table's; `_SUCCESS`
of the table counts for both. Files of older versions are kept beside the table, under `kept/`.

Correctness rests on no lease and on no process being dead: each step is harmless when it is taken late, by a
process that slept before it.

* A file appears in the table by one request that fails without its staged source (`Store.place`): `_SUCCESS`,
  too, whose source is the version's empty marker.
* The staged files of older versions are removed before the folder is listed. Whoever still wants to show an
  older version fails from then on, so that the listing is complete.
* `_SUCCESS` is removed first and placed last, and files of two versions are never in sight.

What that promises to readers: by the commit (`locate`), always exactly one version. A reader that lists the
folder before it opens files gets rows of one version, or "not found"; with the same `_SUCCESS` before and
after, exactly one whole version. `tests/model` walks through the interleavings of these steps.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airflow_provider_raydatallm.processor.sinks.base import (
    DamagedVersionError,
    Newest,
    Sink,
    SourceGoneError,
    StrayFiles,
    UnknownVersionError,
    for_each,
    remove_files,
)
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import NUMBER, STAGED, number_of_file
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import PublishedFile, Version

#: In a table's folder, and with what is staged for it.
SUCCESS = "_SUCCESS"
#: Folder beside the table: files of older versions.
KEPT = "kept"
#: For how long an object store may carry out a copy whose sender is gone.
COPY_TIMEOUT_SECONDS = 15.0

_KEPT_FOLDER = re.compile(NUMBER)


class FolderSink(Sink):
    def prepare(self, staged: str) -> None:
        """Puts the marker whose copy or link becomes `_SUCCESS`."""
        self.folders.staging.put(marker_name(staged), b"")

    def stays_staged(self, name: str) -> bool:
        return name.endswith(f"/{SUCCESS}")

    def keep(self, version: Version) -> None:
        """Keeps the files from where they are: staged, else in the table."""
        staging = self.folders.staging
        kept = set(staging.names(f"{KEPT}/{version.number:06}"))

        def keep(place: tuple[Store, PublishedFile]) -> None:
            store, file = place
            for source, name in ((staging, version.staged_name(file)), (store, file.name)):
                try:
                    staging.place(source, name, kept_name(version, file))
                    return
                except FileNotFoundError:
                    continue  # it was never shown, or was removed after a newer version kept it

        for_each(keep, [place for place in self.places(version) if place[1].plain_name not in kept])

    def show(self, newest: Newest) -> bool:
        version, folders = newest.version, self.folders
        staged = self.fence(version)
        if not newest.is_complete and not folders.table.is_local and not newest.is_first:
            time.sleep(COPY_TIMEOUT_SECONDS)
        shown = Shown.list(folders, version, self._left(newest.before))
        if shown.is_right and newest.is_complete:
            return True
        if shown.unnamed:
            raise UnknownVersionError(shown.unnamed[0])
        if not shown.is_right:
            self._replace(newest, shown, staged)
        remove_files(folders.staging, (version.staged_name(f) for f in version.all_files))
        return False

    def is_shown(self, version: Version, before: Sink | None = None) -> bool:
        return Shown.list(self.folders, version, self._left(before)).is_right

    def check_content(self, version: Version) -> None:
        def check(place: tuple[Store, PublishedFile]) -> None:
            store, file = place
            if store.sha256(file.name) != file.sha256:
                damage = "has other content than was committed"
                raise DamagedVersionError(self.folders, version, file.name, damage)

        for_each(check, self.places(version))

    def tidy(self, before: Sink | None) -> None:
        for quarantine in (self._left(before), self.folders.quarantine):
            quarantine.remove_empty("")

    def remove_kept(self, version: Version, kept: Collection[int]) -> None:
        staging = self.folders.staging
        for name in staging.names(KEPT):
            number = number_of_kept(name)
            if number is not None and number < version.number and number not in kept:
                staging.remove(f"{KEPT}/{name}")

    def kept(self) -> Sequence[tuple[int, str]]:
        staging = self.folders.staging
        return [
            (number, staging.path(f"{KEPT}/{name}"))
            for name in staging.names(KEPT)
            if (number := number_of_kept(name)) is not None
        ]

    def has_kept(self, version: Version) -> bool:
        names = set(self.folders.staging.names(f"{KEPT}/{version.number:06}"))
        return all(f.plain_name in names for f in version.all_files)

    def locate(self, version: Version, *, quarantine: bool = True) -> dict[PublishedFile, tuple[Store, str]]:
        """Finds the files in the folder that shows them, or staged, or kept."""
        folders = self.folders
        folders.check_table(version)
        wanted = version.files
        if quarantine:
            folders, wanted = folders.of(version), version.all_files
        for _ in range(2):  # it may move on meanwhile
            files: dict[PublishedFile, tuple[Store, str]] = {}
            groups = [(folders.table, version.files), (folders.quarantine, version.quarantine)]
            for store, group in groups[: 1 + quarantine]:
                shown = set(store.names()) if group else set()
                files |= {f: (store, f.name) for f in group if f.name in shown}
            for folder, names_of in (
                (STAGED, {f: version.staged_name(f) for f in wanted}),
                (KEPT, {f: kept_name(version, f) for f in wanted}),
            ):
                if len(files) < len(wanted):
                    names = {f"{folder}/{name}" for name in folders.staging.tree(folder)}
                    files |= {
                        f: (folders.staging, name)
                        for f, name in names_of.items()
                        if f not in files and name in names
                    }
            missing = [f.name for f in wanted if f not in files]
            if not missing:
                return files
        raise FileNotFoundError(f"{missing[0]} of version {version.number} in {folders.table.url} is gone")

    def shows_any(self) -> bool:
        return SUCCESS in self.folders.table.names()

    def shown_numbers(self) -> Sequence[tuple[int, str]]:
        return [
            (number, store.path(name))
            for store in (self.folders.table, self.folders.quarantine)
            for name in store.names()
            if (number := number_of_file(name)) is not None
        ]

    def stray_files(self) -> StrayFiles | None:
        names = [name for name in self.folders.table.names() if not name.startswith(("_", "."))]
        if not names:
            return None
        return StrayFiles(names[0], len(names), number_of_file(names[0]) is not None)

    def _left(self, before: Sink | None) -> Store:
        """The quarantine of the version before."""
        return (before or self).folders.quarantine

    def _replace(self, newest: Newest, shown: Shown, staged: set[str]) -> None:
        """:param staged: names that are staged.
        :raises SourceGoneError: when a staged file is gone that is not in the table.
        """
        version, table, staging = newest.version, self.folders.table, self.folders.staging
        if shown.older:  # what is shown now stays, where it cannot be replaced
            for _, file in shown.missing:
                if version.staged_name(file) not in staged:
                    raise SourceGoneError(file.name)
        if shown.has_success:
            table.remove_file(SUCCESS)
        for_each(lambda file: file[0].remove_file(file[1]), shown.older)

        def place(missing: tuple[Store, PublishedFile]) -> None:
            store, file = missing
            _place(store, staging, version.staged_name(file), file.name)

        for_each(place, shown.missing)
        try:
            _place(table, staging, marker_name(version.staged), SUCCESS)
        except SourceGoneError:
            # Somebody removed the marker. Another one is as good, if it is staged before this look at the
            # commits: whoever commits later removes it before listing the table.
            marker = marker_name(f"{version.number:06}-{uuid.uuid4().hex[:8]}")
            staging.put(marker, b"")
            if newest.is_newest():
                _place(table, staging, marker, SUCCESS)


@dataclass(frozen=True)
class Shown:
    """What the folders show of a version, by a listing each."""

    #: (store, name) of files of other versions.
    older: Sequence[tuple[Store, str]]
    missing: Sequence[tuple[Store, PublishedFile]]
    #: Names of files of this number or higher that its commit does not name.
    unnamed: Sequence[str]
    has_success: bool

    @classmethod
    def list(cls, folders: SliceFolders, version: Version, left: Store) -> Shown:
        """:param left: the quarantine of the version before, which may have been in another folder.
        :raises DamagedVersionError: when a file has another size than was committed."""
        older: list[tuple[Store, str]] = []
        missing: list[tuple[Store, PublishedFile]] = []
        unnamed: list[str] = []
        has_success = False
        places = [(folders.quarantine, version.quarantine), (folders.table, version.files)]
        if not left.is_folder(folders.quarantine.url):
            places.insert(0, (left, ()))
        for store, files in places:
            sizes = {f.name: f.size for f in store.files()}
            named = {f.name for f in files}
            for name in sizes:
                number = number_of_file(name)
                if number is not None and number < version.number:
                    older.append((store, name))
                elif number is not None and name not in named:
                    unnamed.append(name)
            for file in files:
                size = sizes.get(file.name)
                if size is None:
                    missing.append((store, file))
                elif size != file.bytes:
                    damage = f"has {size:,} bytes and was committed with {file.bytes:,}"
                    raise DamagedVersionError(folders, version, file.name, damage)
            has_success = SUCCESS in sizes  # the table's, which comes last
        return cls(older, missing, unnamed, has_success)

    @property
    def is_right(self) -> bool:
        return self.has_success and not (self.older or self.missing or self.unnamed)


def marker_name(staged: str) -> str:
    """The staged source of `_SUCCESS`.

    :param staged: a version's folder among the staged files.
    """
    return f"{STAGED}/{staged}/{SUCCESS}"


def kept_name(version: Version, file: PublishedFile) -> str:
    return f"{KEPT}/{version.number:06}/{file.plain_name}"


def number_of_kept(name: str) -> int | None:
    """The version of a folder below that of kept versions; None for those of others."""
    return int(name) if _KEPT_FOLDER.fullmatch(name) else None


def _place(store: Store, staging: Store, source: str, name: str) -> None:
    try:
        store.place(staging, source, name)
    except FileNotFoundError:
        raise SourceGoneError(name) from None
