"""Removes what abandoned runs left: checkpoints, leases and staged files of slices that no run continues.

It works under the slice's lease, and looks again once it holds it: a run that began meanwhile keeps what it
continues. A run that was judged dead and wakes up later loses time, never rows: before anything is removed, a
void commit uses up the number under which it could publish, so that it decides again and finds what is
missing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress, slice_paths, slice_template
from airflow_provider_raydatallm.processor.publish.version_numbers import next_number
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.storage.probe import PROBE
from airflow_provider_raydatallm.processor.storage.store import is_scratch, modified_at
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    PROGRESS,
    STAGED,
    number_of_staged,
    staged_of_document,
)
from airflow_provider_raydatallm.processor.store.lease import (
    LEASE,
    STALE_SECONDS,
    LeaseHolder,
    LeaseLostError,
    read_holder,
)
from airflow_provider_raydatallm.processor.store.leftovers import lease_to_tidy, remove_rows
from airflow_provider_raydatallm.processor.store.ownership import check_folders
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.slice_listing import find_folders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    STAGED_VERSIONS,
    KeptStaged,
    remove_document,
)
from airflow_provider_raydatallm.processor.store.versions import Commits, NumberTakenError

logger = logging.getLogger(__name__)

_THREADS = 16
#: Of a slice's metadata, what a run needs that has not published yet.
_OF_RUNS = (f"{CHECKPOINT}/", f"{LEASE}/", f"{STAGED_VERSIONS}/", PROGRESS)


@dataclass(frozen=True)
class Leftovers:
    """What runs left in one slice, and the days since the newest of it changed.

    :ivar dead: the last holder of the slice's lease, whose beat was watched.
    """

    folders: SliceFolders
    age_days: float
    slice_key: str
    dead: LeaseHolder | None = None

    def is_dead(self, holder: LeaseHolder) -> bool:
        """Whether a holder is the one that was watched, and has not beaten since."""
        return self.dead is not None and self.dead.is_same_beat(holder)


def find_leftovers(of: SliceAddress, days: float, stale_seconds: float = STALE_SECONDS) -> list[Leftovers]:
    """Finds slices of a slice's table, and of its trials, in which runs left files that have not changed for
    `days`. Slices on which a run is at work are not among them, nor those whose metadata cannot be read.

    :param stale_seconds: for how long a holder's beat is watched before it counts as dead.
    :raises SliceError: when their folders are another table's.
    """
    trials = (None, "{trial}") if of.trial is None else (of.trial,)
    slices = [one for trial in trials for one in _list_slices(of, trial)]
    folders = [SliceFolders.open(one.paths) for one in slices]
    with ThreadPoolExecutor(_THREADS) as pool:
        ages = list(pool.map(partial(_age_if_readable, days), slices, folders))
        old = [
            (one, Leftovers(f, age, one.slice_key))
            for one, f, age in zip(slices, folders, ages, strict=True)
            if age is not None and age >= days
        ]
        for of_table in {one.table_paths: one for one, _ in old}.values():
            check_folders(of_table)
        stores = [found.folders.metadata for _, found in old]
        holders = list(pool.map(read_holder, stores))
        if any(holders):
            time.sleep(stale_seconds)
        beats = list(pool.map(read_holder, stores))
    return [
        replace(found, dead=now)
        for (_, found), before, now in zip(old, holders, beats, strict=True)
        if now is None or (before is not None and before.is_same_beat(now))
    ]


def remove_leftovers(found: Leftovers, days: float = 0) -> bool:
    """Voids the slice's open number, then removes the files of runs that can no longer publish, and staged
    versions that are too old. Those that are not keep their files and rows.

    :param days: as of `find_leftovers`.
    :return: whether it did: not when a run is at work by now, or has been since they were found.
    :raises SliceError: when its newest commit cannot be read; then nothing is changed.
    """
    folders = found.folders
    if _is_probe(folders):
        folders.metadata.remove("")
        return True
    versions.newest_version(folders.metadata)  # these raise before anything is changed
    folders.metadata.names(CHECKPOINT)
    lease = lease_to_tidy(folders, found.slice_key, found.is_dead)
    if lease is None:
        return False
    with contextlib.closing(lease):
        age = _age_days(folders, days, besides=f"{LEASE}/")
        if age is not None and age < days:
            return False
        staged, files = folders.staging.tree(STAGED), folders.metadata.tree("")
        try:
            lease.check()  # what is written from here on, whoever holds it, is not among these
        except LeaseLostError:
            return False
        _remove_listed(folders, staged, files, days)
    return True


def _remove_listed(folders: SliceFolders, staged: list[str], files: list[str], days: float) -> None:
    """
    :param staged: paths below the folder of staged files.
    :param files: paths below the slice's metadata.
    """
    metadata = folders.metadata
    for name in KeptStaged.list(folders, days).too_old:
        remove_document(metadata, name)  # before the void: who commits it looks for it until then
    while True:
        try:
            number = next_number(folders, Commits.list(metadata).newest_number())
        except NumberTakenError:
            continue
        if versions.void(metadata, number, "gc removed what an abandoned run left"):
            break
    newest = versions.newest_version(metadata)
    kept = KeptStaged.list(folders, days)  # after the void: who stages looks for it after its document
    for name in staged:
        of = number_of_staged(name)
        is_old = of is not None and of <= number and (newest is None or of != newest.number)
        if is_old and name.partition("/")[0] not in kept.names:
            folders.staging.remove_file(f"{STAGED}/{name}")
            folders.staging.remove_empty(f"{STAGED}/{name.partition('/')[0]}")
    remove_rows(metadata, [name for name in files if _is_leftover(name, kept)])
    for name in metadata.names(CHECKPOINT):
        metadata.remove_empty(f"{CHECKPOINT}/{name}")
    metadata.remove_empty(CHECKPOINT)


def _is_leftover(name: str, kept: KeptStaged) -> bool:
    """Whether a path in a slice's metadata is of a run's rows or progress, or half written."""
    folder, _, rest = name.partition("/")
    if folder == CHECKPOINT:
        return not kept.counts(rest.partition("/")[0])
    return name == PROGRESS or is_scratch(name)


def _is_probe(folders: SliceFolders) -> bool:
    """Whether it is not a slice but what a killed first run of the table left."""
    return folders.metadata.url.rpartition("/")[2].startswith(PROBE)


def _list_slices(of: SliceAddress, trial: str | None) -> list[SliceAddress]:
    """Those of a table that have metadata; with "{trial}", of all its trials."""
    metadata_path = of.metadata_path if trial is None else None
    template = slice_paths(slice_template(of.output_path, trial), metadata_path).metadata
    return [
        replace(of, slice_key=unquote(fields["slice"]), trial=fields.get("trial", trial))
        for fields in find_folders(template)
    ]


def _is_of_key(of: SliceAddress, folders: SliceFolders) -> bool:
    """Whether a folder's run or version says so: "sales-b-2026-01-31", the slice of "sales-b-{slice}", has a
    name as a slice of "sales-{slice}" has."""
    holder = read_holder(folders.metadata, released=True)
    key = holder.slice_key if holder is not None else None
    if key is None and (version := versions.newest_version(folders.metadata)) is not None:
        key = version.body.get("slice_key")
    return key is None or key == of.slice_key


def _age_if_readable(days: float, of: SliceAddress, folders: SliceFolders) -> float | None:
    try:
        age = _age_days(folders, days)
        return age if age is None or _is_of_key(of, folders) else None
    except SliceError as e:
        logger.warning("What runs left in %s stays: %s", folders.metadata.url, e)
        return None


def _age_days(folders: SliceFolders, days: float, *, besides: str | None = None) -> float | None:
    """Days since a run of the slice last wrote what a finished slice does not have; None where there is none.
    Staged versions that are not too old count as if they were published, with their files and rows.

    :param besides: how names begin that do not count.
    """
    details = folders.metadata.details()
    is_staged = any(name.startswith(f"{STAGED_VERSIONS}/") for name in details)
    kept = KeptStaged.list(folders, days) if is_staged else KeptStaged()
    times = [
        at
        for name, at in _changes(details)
        if not (besides and name.startswith(besides))
        and (
            is_scratch(name)
            or _is_probe(folders)
            or (name.startswith(_OF_RUNS) and not _is_of_staged(kept, name))
        )
    ]
    highest, sink = Commits.list(folders.metadata).highest, open_sink(folders)
    for name, at in _changes(folders.staging.details(STAGED)):
        number = number_of_staged(name)
        if number is None or name.partition("/")[0] in kept.names:
            continue
        if number > highest or not sink.stays_staged(name):
            times.append(at)
    return max(0.0, time.time() - max(times)) / 86400 if times else None


def _is_of_staged(kept: KeptStaged, name: str) -> bool:
    """Whether a file of a slice's metadata stays with a staged version."""
    folder, _, rest = name.partition("/")
    if folder == STAGED_VERSIONS:
        return staged_of_document(rest) in kept.names
    if folder == CHECKPOINT:
        return kept.counts(rest.partition("/")[0])
    return bool(kept.names)


def _changes(details: dict[str, dict[str, Any]]) -> Iterable[tuple[str, float]]:
    return ((name, modified_at(info)) for name, info in details.items())
