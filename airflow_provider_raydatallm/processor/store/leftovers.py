"""What a slice needs no more once its version is published. Imports only fsspec, for the Airflow side.

Whoever removes what runs wrote lists it under a lease, looks at the lease once more, and removes what it
listed: a run that takes the lease over, at whatever instant, writes files of other names, which stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Sequence

from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.epochs import newest_epoch_written
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    PROGRESS,
    epoch_of_forced,
    epoch_of_golden,
    input_of_plan,
    staged_of_rejection,
)
from airflow_provider_raydatallm.processor.store.lease import LEASE, Lease, LeaseHolder, LeaseLostError
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import STAGED_VERSIONS, held_questions
from airflow_provider_raydatallm.processor.store.versions import Version

#: A question that is asked again after a version: its number.
_FOLLOWS = re.compile(r"[0-9a-f]{16}-[a-z]+-(\d{6,})")


def lease_to_tidy(
    folders: SliceFolders, slice_key: str, is_over: Callable[[LeaseHolder], bool]
) -> Lease | None:
    """Acquires the slice's lease, to remove what runs left; None while a run is at work.

    :param is_over: as of `Lease.acquire`.
    """
    return Lease.acquire(
        folders.metadata,
        me=f"process {os.getpid()} on {socket.gethostname()}, which tidies",
        slice_key=slice_key,
        known_epoch=lambda: newest_epoch_written(folders.metadata),
        wait=True,
        stop_waiting=lambda holder: True,
        is_over=is_over,
    )


def remove_what_runs_kept(folders: SliceFolders, version: Version) -> None:
    """Removes what a dead run kept for a version, the newest one, which is published; nothing while a run is
    at work. Rows of another input stay, for a run over that."""
    metadata = folders.metadata
    if not {CHECKPOINT, LEASE, PROGRESS} & set(metadata.names()):
        return
    made_it = (version.epoch, version.body.get("run"))  # that run has no more to do
    lease = lease_to_tidy(
        folders, str(version.body.get("slice_key")), lambda holder: (holder.epoch, str(holder)) == made_it
    )
    if lease is None:
        return
    with contextlib.closing(lease):
        newest = versions.newest_version(metadata)
        if newest is not None and newest.number == version.number:
            remove_checkpoints(folders, version, lease, of_other_inputs=False)


def remove_checkpoints(
    folders: SliceFolders, version: Version, lease: Lease, *, of_other_inputs: bool = True
) -> None:
    """Removes the checkpoints that a version, the newest one, makes useless: its own, and those that follow
    an older one; with them the progress of whoever wrote them, also of a run that came second. Rows of other
    questions stay, for a run that asks them again, and those of versions that wait for somebody.

    Removes nothing when the lease was lost: its holder may count on what is there.

    :param of_other_inputs: whether also those that have rows of another input.
    """
    store = folders.metadata
    names = store.names()  # one listing finds a finished slice without any
    useless = {}
    for name in store.names(CHECKPOINT) if CHECKPOINT in names else ():
        follows = _FOLLOWS.fullmatch(name)
        if name == version.question or (follows is not None and int(follows[1]) < version.number):
            folder = f"{CHECKPOINT}/{name}"
            files = store.tree(folder)
            inputs = {of_input for file in files if (of_input := input_of_plan(file)) is not None}
            if of_other_inputs or inputs <= {version.input_hash}:
                useless[name] = [f"{folder}/{file}" for file in files]
    held: frozenset[str] | None = frozenset()
    if useless and STAGED_VERSIONS in names:
        held = held_questions(folders, version.body.get("staged_version"))
    if useless or PROGRESS in names:
        try:
            lease.check()
        except LeaseLostError:
            return
    for name, listed in useless.items():
        if held is not None and name not in held:
            remove_rows(store, listed)
            store.remove_empty(f"{CHECKPOINT}/{name}")
    store.remove_empty(CHECKPOINT)
    if PROGRESS in names and (of_other_inputs or not store.names(CHECKPOINT)):
        store.remove(PROGRESS)


def _decides(name: str) -> bool:
    epochs = (epoch_of_forced(name), epoch_of_golden(name))
    return staged_of_rejection(name) is not None or any(epoch is not None for epoch in epochs)


def remove_rows(metadata: Store, names: Sequence[str]) -> None:
    """Removes files of checkpoints. What says something against answers is there until these are gone: else
    they would count once more where this is killed."""
    decisions = [name for name in names if _decides(name.rpartition("/")[2])]
    metadata.remove_all([name for name in names if name not in decisions])
    metadata.remove_all(decisions)
