"""What the folders of a slice show: the newest version, once they are reconciled (`publish.reconcile`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import number_of_file
from airflow_provider_raydatallm.processor.store.versions import SUCCESS, PublishedFile, SliceFolders, Version


class DamagedVersionError(SliceError):
    """A file of the newest version is nowhere, or is not what was committed."""

    def __init__(self, folders: SliceFolders, version: Version, name: str, damage: str) -> None:
        super().__init__(
            f"{name} of version {version.number} in {folders.table.url} {damage}", kind="transient"
        )
        self.version, self.name = version, name


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
