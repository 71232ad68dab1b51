"""The port of all kinds of sinks: how the committed versions of one slice are shown as a table.

A sink never decides. It is handed a committed version (the body of its commit), which `publish.reconcile`
found to be the newest, and makes the table show exactly that one. Every kind keeps these promises:

* Any process may call any method at any time, several at once, late, or again after one that died. To show a
  version again shows nothing twice.
* An older version is never shown over a newer one, also by a process that slept since it read the commits.
* A reader gets one whole version, or an error, in the way that the kind documents.
* The committed files of the newest version, and of kept ones, can be had again as they were committed
  (`locate`).

Imports only fsspec, so that the Airflow side can commit, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import STAGED, number_of_staged
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import PublishedFile, Version

#: Requests at once, for versions of many files.
_THREADS = 16


class DamagedVersionError(SliceError):
    """A file of the newest version is nowhere, or is not what was committed."""

    def __init__(self, folders: SliceFolders, version: Version, name: str, damage: str) -> None:
        super().__init__(
            f"{name} of version {version.number} in {folders.table.url} {damage}", kind="transient"
        )
        self.version, self.name = version, name


class SourceGoneError(Exception):
    """A staged file is gone and the table does not have it. A newer version removed it, or another process
    has shown it meanwhile: whoever lists the commits again sees which."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class UnknownVersionError(Exception):
    """The table shows what this version's commit does not name, and no older commit can: a newer version was
    committed, or its commit is lost.

    :ivar name: what the table shows.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Newest:
    """The version to show: the newest one, by one listing of the commits.

    :ivar is_complete: it was shown before, and nothing of an older version can still come.
    :ivar is_first: no lower number is used up, so that nothing older can be shown, or on its way.
    :ivar before: the sink of the version before it, which may have had another quarantine; None for none.
    :ivar is_newest: lists the commits again.
    """

    version: Version
    is_complete: bool
    is_first: bool
    before: Sink | None
    is_newest: Callable[[], bool]


@dataclass(frozen=True)
class StrayFiles:
    """Files where a slice without a version is to be shown.

    :ivar is_published: the first one has the name of a version's file, whose commit is gone then.
    """

    first: str
    count: int
    is_published: bool


class Sink(ABC):
    """Shows the committed versions of one slice.

    :param folders: of the slice, and those that show the version that the methods are called with.
    """

    def __init__(self, folders: SliceFolders) -> None:
        self.folders = folders

    def of(self, version: Version) -> Sink:
        """The sink of the folders that show a version.

        :raises SliceError: see `SliceFolders.of`.
        """
        folders = self.folders.of(version)
        return self if folders is self.folders else type(self)(folders)

    @abstractmethod
    def prepare(self, staged: str) -> None:
        """Adds to a version's staged files what `show` needs beside them. Called before each commit.

        :param staged: the version's folder among the staged files.
        """

    def stays_staged(self, name: str) -> bool:
        """Whether a staged file stays for as long as its version is the newest one.

        :param name: its path below the folder of staged files.
        """
        return False

    @abstractmethod
    def keep(self, version: Version) -> None:
        """Keeps the files of an older version, before `show` may remove them."""

    @abstractmethod
    def show(self, newest: Newest) -> bool:
        """Makes the table show a version. Returns whether it showed it before, completely: then nothing was
        changed, and nobody needs to look again.

        :raises SourceGoneError: when a file is neither staged nor shown.
        :raises UnknownVersionError: when the table shows a newer version.
        :raises DamagedVersionError: when a file of it is not what was committed.
        """

    @abstractmethod
    def is_shown(self, version: Version, before: Sink | None = None) -> bool:
        """Whether the table shows exactly this version.

        :param before: also looks where that sink showed the version before.
        :raises DamagedVersionError: when a file has another size than was committed.
        """

    @abstractmethod
    def check_content(self, version: Version) -> None:
        """Reads all that the table shows of a version and compares checksums.

        :raises DamagedVersionError: naming the file that is not what was committed.
        """

    def tidy(self, before: Sink | None) -> None:  # noqa: B027 - a kind may have nothing to remove
        """Removes what is empty now that another version is shown."""

    @abstractmethod
    def remove_kept(self, version: Version, kept: Collection[int]) -> None:
        """Removes the files of versions older than this one, but for those whose numbers are given."""

    @abstractmethod
    def kept(self) -> Sequence[tuple[int, str]]:
        """The numbers of versions of which files are kept, and where, the oldest first."""

    @abstractmethod
    def has_kept(self, version: Version) -> bool:
        """Whether all files of an older version are kept."""

    @abstractmethod
    def locate(self, version: Version, *, quarantine: bool = True) -> dict[PublishedFile, tuple[Store, str]]:
        """Finds each committed file of a version, wherever it is.

        :param quarantine: also those of rows that failed.
        :raises FileNotFoundError: when one is nowhere.
        """

    @abstractmethod
    def shows_any(self) -> bool:
        """Whether the table shows some version, whatever is committed."""

    @abstractmethod
    def shown_numbers(self) -> Sequence[tuple[int, str]]:
        """The numbers of versions of which something is shown, and where, whatever is committed."""

    @abstractmethod
    def stray_files(self) -> StrayFiles | None:
        """What lies where a slice without a version is to be shown; None for nothing."""

    def fence(self, version: Version) -> set[str]:
        """Removes what is staged for older versions, and for this number without being this version's:
        whoever wants to show one of those fails from then on.

        :return: all names that were staged.
        """
        staging = self.folders.staging
        own = {version.staged_name(f) for f in version.all_files}
        staged = [(f"{STAGED}/{name}", name) for name in staging.tree(STAGED)]
        remove_files(
            staging,
            [
                path
                for path, name in staged
                if (number := number_of_staged(name)) is not None
                and (
                    number < version.number
                    or (number == version.number and path not in own and not self.stays_staged(name))
                )
            ],
        )
        return {path for path, _ in staged}

    def places(self, version: Version) -> list[tuple[Store, PublishedFile]]:
        """Each file of a version, and the folder of its table: the slice's, or its quarantine."""
        table, quarantine = self.folders.table, self.folders.quarantine
        return [(table, f) for f in version.files] + [(quarantine, f) for f in version.quarantine]


def remove_files(store: Store, names: Iterable[str]) -> None:
    """Removes files, and the folders that are empty then."""
    names = list(names)
    for_each(store.remove_file, names)
    for folder in {name.rpartition("/")[0] for name in names}:
        store.remove_empty(folder)


def for_each(action: Callable[[Any], None], values: Sequence[Any]) -> None:
    if len(values) <= 1:
        for value in values:
            action(value)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(action, values))
