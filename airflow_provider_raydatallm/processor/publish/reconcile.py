"""Makes the table show the newest version. Anybody may, at any time, as often as they like.

What is committed is decided; here the newest version is found, and the slice's sink (`sinks.base`) shows it.
Correctness rests on no lease and on no process being dead: a process that slept between two steps shows
nothing that a newer commit has replaced, and looks again.

`tests/model` walks through the interleavings of these steps and of those of a folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import report_name
from airflow_provider_raydatallm.processor.sinks.base import (
    DamagedVersionError,
    Newest,
    Sink,
    SourceGoneError,
    UnknownVersionError,
)
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import (
    COMMITS,
    PLANS,
    number_of_plan,
    number_of_staged,
)
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    STAGED_VERSIONS,
    read_staged,
    remove_document,
    staged_names,
)
from airflow_provider_raydatallm.processor.store.versions import Commits, Version

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
        sink = open_sink(folders)
        is_complete = version.staged in commits.complete
        older = [] if is_complete else _older_versions(commits, sink, version)
        kept = [one for one, _ in older[: version.keep]]
        for one, showed_it in older[: version.keep]:
            showed_it.keep(one)
        before = older[0][1] if older else None
        is_newest = partial(_is_newest, folders, version)
        is_first = commits.numbers[0] == version.number
        try:
            if sink.show(Newest(version, is_complete, is_first, before, is_newest)):
                return version
        except UnknownVersionError as e:
            if is_newest():
                raise SliceError(
                    f"{folders.table.url} or its quarantine holds {e.name}, and no commit names "
                    "that file: a newer commit is lost",
                    kind="input",
                    advice="Restore it, or set rerun.force=True to answer the slice again",
                ) from None
            continue
        except SourceGoneError as e:
            # A newer version removed it, or another process placed it: the next round shows which.
            misses[version.number, e.name] += 1
            if misses[version.number, e.name] > 1:
                raise DamagedVersionError(folders, version, e.name, "is gone") from None
            continue
        if is_newest() and sink.is_shown(version, before):
            if not is_complete:
                sink.tidy(before)
                _complete(folders, sink, version, kept)
            return version
    raise SliceError(
        f"{folders.table.url} still does not show the newest version after {_MAX_ROUNDS} attempts: other "
        "runs publish all the time",
        kind="transient",
    )


def _older_versions(commits: Commits, sink: Sink, version: Version) -> list[tuple[Version, Sink]]:
    """The versions before this one that it keeps, at least one, the newest first, and the sinks that showed
    each. Not those that name a folder which is not the table's: nothing there is copied or removed."""
    found: list[tuple[Version, Sink]] = []
    for one in commits.versions(below=version.number):
        try:
            found.append((one, sink.of(one)))
        except SliceError as e:
            if e.kind != "input":
                raise
        if len(found) >= max(version.keep, 1):
            break
    return found


def _complete(folders: SliceFolders, sink: Sink, version: Version, kept: Sequence[Version]) -> None:
    """Removes what nobody reads any more, and records that the version is shown and no older one can come
    back: last, so that whoever dies before has the next one remove the rest."""
    metadata = folders.metadata
    metadata.put_json(report_name(version.number), version.body["report"])
    sink.remove_kept(version, {v.number for v in kept})
    # Whoever writes there now writes again, or can do without.
    plans = {v.plan for v in (version, *kept)}
    for name in metadata.names(PLANS):
        number = number_of_plan(f"{PLANS}/{name}")
        if number is not None and number < version.number and f"{PLANS}/{name}" not in plans:
            metadata.remove_file(f"{PLANS}/{name}")
    for name in staged_names(metadata):
        if name == version.body.get("staged_version") or _is_of_a_run(folders, name, version):
            remove_document(metadata, name)
    for staged in Commits.list(metadata).complete:
        if (number_of_staged(staged) or 0) < version.number:
            metadata.remove_file(versions.complete_name(staged))
    for folder in (COMMITS, PLANS, STAGED_VERSIONS, ""):
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


def _is_newest(folders: SliceFolders, version: Version) -> bool:
    newest = versions.newest_version(folders.metadata)
    return newest is not None and newest.number == version.number
