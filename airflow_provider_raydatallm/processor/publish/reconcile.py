"""Makes the table's folder show the newest version. Anybody may, at any time, as often as they like.

What is committed is decided; here it is only shown. Correctness rests on no lease and on no process being
dead: each step is harmless when it is taken late, by a process that slept before it.

* A file appears in the table by one request that fails without its staged source (`Store.place`): `_SUCCESS`,
  too, whose source is the version's empty marker.
* The staged files of older versions are removed before the folder is listed. Whoever still wants to show an
  older version fails from then on, so that the listing is complete.
* `_SUCCESS` is removed first and placed last, and files of two versions are never in sight.

`tests/model` walks through the interleavings of these steps.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import report_name
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import (
    number_of_kept,
    number_of_plan,
    number_of_staged,
)
from airflow_provider_raydatallm.processor.store.shown import DamagedVersionError, Shown
from airflow_provider_raydatallm.processor.store.staged_versions import (
    STAGED_VERSIONS,
    read_staged,
    remove_document,
    staged_names,
)
from airflow_provider_raydatallm.processor.store.versions import (
    SUCCESS,
    Commits,
    PublishedFile,
    SliceFolders,
    Version,
)

#: For how long an object store may carry out a copy whose sender is gone.
COPY_TIMEOUT_SECONDS = 15.0
#: Requests at once, for versions of many files.
_THREADS = 16
#: Each round that is not the last one met a newer version, or another process at the same work.
_MAX_ROUNDS = 50


def reconcile(folders: SliceFolders) -> Version | None:
    """Makes the folders show the newest version, and returns it; None when there is none.

    :raises DamagedVersionError: when a file of it is nowhere, or has another size than was committed.
    """
    misses: Counter[tuple[int, str]] = Counter()
    for _ in range(_MAX_ROUNDS):
        commits = Commits.list(folders.metadata)
        version = commits.newest()
        if version is None:
            return None
        folders = folders.of(version)
        is_complete = version.staged in commits.complete
        older = [] if is_complete else _older_versions(commits, folders, version)
        kept = [one for one, _ in older[: version.keep]]
        for one, showed_it in older[: version.keep]:
            _keep(showed_it, one)
        left = older[0][1].quarantine if older else folders.quarantine
        staged = _fence(folders, version)
        if not is_complete and not folders.table.is_local and commits.numbers[0] < version.number:
            time.sleep(COPY_TIMEOUT_SECONDS)
        shown = Shown.list(folders, version, left)
        if shown.is_right and is_complete:
            return version
        if shown.unnamed:
            if _is_newest(folders, version):
                raise SliceError(
                    f"{folders.table.url} or its quarantine holds {shown.unnamed[0]}, and no commit names "
                    "that file: a newer commit is lost",
                    kind="input",
                    advice="Restore it, or set rerun.force=True to answer the slice again",
                )
            continue
        try:
            _show(folders, version, shown, staged)
        except _SourceGoneError as e:
            # A newer version removed it, or another process placed it: the next round shows which.
            misses[version.number, e.name] += 1
            if misses[version.number, e.name] > 1:
                raise DamagedVersionError(folders, version, e.name, "is gone") from None
            continue
        _remove(folders.staging, (version.staged_name(f) for f in version.all_files))
        if _is_newest(folders, version) and Shown.list(folders, version, left).is_right:
            if not is_complete:
                for quarantine in (left, folders.quarantine):
                    quarantine.remove_empty("")
                _complete(folders, version, kept)
            return version
    raise SliceError(
        f"{folders.table.url} still does not show the newest version after {_MAX_ROUNDS} attempts: other "
        "runs publish all the time",
        kind="transient",
    )


def check_content(folders: SliceFolders, version: Version) -> None:
    """Reads the whole files that the folders show and compares their checksums.

    :raises DamagedVersionError: naming the file that is not what was committed.
    """

    folders = folders.of(version)

    def check(place: tuple[Store, PublishedFile]) -> None:
        store, file = place
        if store.sha256(file.name) != file.sha256:
            raise DamagedVersionError(folders, version, file.name, "has other content than was committed")

    _for_each(check, _places(folders, version))


class _SourceGoneError(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _older_versions(
    commits: Commits, folders: SliceFolders, version: Version
) -> list[tuple[Version, SliceFolders]]:
    """The versions before this one that it keeps, at least one, the newest first, and the folders that showed
    each. Not those that name a folder which is not the table's: nothing there is copied or removed."""
    found: list[tuple[Version, SliceFolders]] = []
    for one in commits.versions(below=version.number):
        try:
            found.append((one, folders.of(one)))
        except SliceError as e:
            if e.kind != "input":
                raise
        if len(found) >= max(version.keep, 1):
            break
    return found


def _keep(folders: SliceFolders, version: Version) -> None:
    """Keeps the files of an older version, from where they are: staged, else in the table."""
    kept = set(folders.staging.names(f"{versions.KEPT}/{version.number:06}"))

    def keep(place: tuple[Store, PublishedFile]) -> None:
        store, file = place
        for source, name in ((folders.staging, version.staged_name(file)), (store, file.name)):
            try:
                folders.staging.place(source, name, version.kept_name(file))
                return
            except FileNotFoundError:
                continue  # it was never shown, or was removed after a newer version kept it

    _for_each(keep, [place for place in _places(folders, version) if place[1].plain_name not in kept])


def _fence(folders: SliceFolders, version: Version) -> set[str]:
    """Removes what is staged for older versions, and for this number without being this version's.

    :return: all names that were staged.
    """
    own = {version.staged_name(f) for f in version.all_files}
    staged = [f"{versions.STAGED}/{name}" for name in folders.staging.tree(versions.STAGED)]
    _remove(
        folders.staging,
        [
            name
            for name in staged
            if (number := number_of_staged(name.partition("/")[2])) is not None
            and (
                number < version.number
                or (number == version.number and name not in own and not name.endswith(f"/{SUCCESS}"))
            )
        ],
    )
    return set(staged)


def _show(folders: SliceFolders, version: Version, shown: Shown, staged: set[str]) -> None:
    """:param staged: names that are staged.
    :raises _SourceGoneError: when a staged file is gone that is not in the table.
    """
    if shown.is_right:
        return
    if shown.older:  # what is shown now stays, where it cannot be replaced
        for _, file in shown.missing:
            if version.staged_name(file) not in staged:
                raise _SourceGoneError(file.name)
    if shown.has_success:
        folders.table.remove_file(SUCCESS)
    _for_each(lambda file: file[0].remove_file(file[1]), shown.older)

    def place(missing: tuple[Store, PublishedFile]) -> None:
        store, file = missing
        _place(store, folders.staging, version.staged_name(file), file.name)

    _for_each(place, shown.missing)
    try:
        _place(folders.table, folders.staging, version.marker, SUCCESS)
    except _SourceGoneError:
        # Somebody removed the marker. Another one is as good, if it is staged before this look at the
        # commits:
        # whoever commits later removes it before listing the table.
        marker = f"{versions.STAGED}/{version.number:06}-{uuid.uuid4().hex[:8]}/{SUCCESS}"
        folders.staging.put(marker, b"")
        if _is_newest(folders, version):
            _place(folders.table, folders.staging, marker, SUCCESS)


def _place(store: Store, staging: Store, source: str, name: str) -> None:
    try:
        store.place(staging, source, name)
    except FileNotFoundError:
        raise _SourceGoneError(name) from None


def _complete(folders: SliceFolders, version: Version, kept: Sequence[Version]) -> None:
    """Removes what nobody reads any more, and records that the version is shown and no older one can come
    back: last, so that whoever dies before has the next one remove the rest."""
    metadata = folders.metadata
    metadata.put_json(report_name(version.number), version.body["report"])
    kept_numbers = {v.number for v in kept}
    for name in folders.staging.names(versions.KEPT):
        number = number_of_kept(name)
        if number is not None and number < version.number and number not in kept_numbers:
            folders.staging.remove(f"{versions.KEPT}/{name}")
    # Whoever writes there now writes again, or can do without.
    plans = {v.plan for v in (version, *kept)}
    for name in metadata.names(versions.PLANS):
        number = number_of_plan(f"{versions.PLANS}/{name}")
        if number is not None and number < version.number and f"{versions.PLANS}/{name}" not in plans:
            metadata.remove_file(f"{versions.PLANS}/{name}")
    for name in staged_names(metadata):
        if name == version.body.get("staged_version") or _is_of_a_run(folders, name, version):
            remove_document(metadata, name)
    for staged in Commits.list(metadata).complete:
        if (number_of_staged(staged) or 0) < version.number:
            metadata.remove_file(versions.complete_name(staged))
    for folder in (versions.COMMITS, versions.PLANS, STAGED_VERSIONS, ""):
        metadata.remove_scratch(folder)
    metadata.remove_empty(STAGED_VERSIONS)
    metadata.put(versions.complete_name(version.staged), b"")


def _is_of_a_run(folders: SliceFolders, name: str, version: Version) -> bool:
    """Whether a run staged that, to publish it at once, and can do so no more. One that is held stays for who
    holds it."""
    if (number_of_staged(name) or 0) > version.number:
        return False
    try:
        staged = read_staged(folders, name)
    except SliceError:
        return False
    return staged is not None and not staged.is_held


def _places(folders: SliceFolders, version: Version) -> list[tuple[Store, PublishedFile]]:
    """Each file of a version, and the folder that shows it."""
    return [(folders.table, f) for f in version.files] + [(folders.quarantine, f) for f in version.quarantine]


def _is_newest(folders: SliceFolders, version: Version) -> bool:
    newest = versions.newest_version(folders.metadata)
    return newest is not None and newest.number == version.number


def _remove(store: Store, names: Iterable[str]) -> None:
    """Removes files, and the folders that are empty then."""
    names = list(names)
    _for_each(store.remove_file, names)
    for folder in {name.rpartition("/")[0] for name in names}:
        store.remove_empty(folder)


def _for_each(action: Callable[[Any], None], values: Sequence[Any]) -> None:
    if len(values) <= 1:
        for value in values:
            action(value)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(action, values))
