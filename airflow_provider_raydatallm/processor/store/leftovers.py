"""What a slice needs no more once its version is published. Imports only fsspec, for the Airflow side."""

from __future__ import annotations

import contextlib
import os
import re
import socket

from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT, PROGRESS, input_of_plan
from airflow_provider_raydatallm.processor.store.lease import LEASE, Lease, read_holder, remove_leases
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import STAGED_VERSIONS, held_questions
from airflow_provider_raydatallm.processor.store.versions import Version

#: A question that is asked again after a version: its number.
_FOLLOWS = re.compile(r"[0-9a-f]{16}-[a-z]+-(\d{6,})")


def remove_what_runs_kept(folders: SliceFolders, version: Version) -> None:
    """Removes what a dead run kept for a version, the newest one, which is published; nothing while a run is
    at work. Rows of another input stay, for a run over that."""
    metadata = folders.metadata
    if not {CHECKPOINT, LEASE, PROGRESS} & set(metadata.names()):
        return
    holder = read_holder(metadata, released=True)
    if holder is not None and (holder.epoch, str(holder)) == (version.epoch, version.body.get("run")):
        remove_leases(metadata, version.epoch)  # of the run that made it, and that has no more to do
    lease = Lease.acquire(
        metadata,
        me=f"process {os.getpid()} on {socket.gethostname()}, which tidies",
        slice_key=str(version.body.get("slice_key")),
        published_epoch=lambda: versions.epoch(metadata),
        wait=True,
        stop_waiting=lambda holder: True,
    )
    if lease is None:
        return
    with contextlib.closing(lease):
        newest = versions.newest_version(metadata)
        if newest is not None and newest.number == version.number:
            remove_checkpoints(folders, version, of_other_inputs=False)


def remove_checkpoints(folders: SliceFolders, version: Version, *, of_other_inputs: bool = True) -> None:
    """Removes the checkpoints that a version, the newest one, makes useless: its own, and those that follow
    an older one; with them the progress of whoever wrote them, also of a run that came second. Rows of other
    questions stay, for a run that asks them again, and those of versions that wait for somebody.

    :param of_other_inputs: whether also those that have rows of another input.
    """
    store = folders.metadata
    names = store.names()  # one listing finds a finished slice without any
    useless = []
    for name in store.names(CHECKPOINT) if CHECKPOINT in names else ():
        follows = _FOLLOWS.fullmatch(name)
        if name == version.question or (follows is not None and int(follows[1]) < version.number):
            useless.append(name)
    if useless:
        held: frozenset[str] | None = frozenset()
        if STAGED_VERSIONS in names:
            held = held_questions(folders, version.body.get("staged_version"))
        for name in useless:
            if held is None or name in held:
                continue
            if of_other_inputs or _planned_inputs(folders, name) <= {version.input_hash}:
                store.remove(f"{CHECKPOINT}/{name}")
    store.remove_empty(CHECKPOINT)
    if PROGRESS in names and (of_other_inputs or not store.names(CHECKPOINT)):
        store.remove(PROGRESS)


def _planned_inputs(folders: SliceFolders, checkpoint: str) -> set[str]:
    names = folders.metadata.names(f"{CHECKPOINT}/{checkpoint}")
    return {of_input for name in names if (of_input := input_of_plan(name)) is not None}
