"""What a slice needs no more once its version is published. Imports only fsspec, for the Airflow side."""

from __future__ import annotations

import re

from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT, PROGRESS
from airflow_provider_raydatallm.processor.store.lease import read_holder, remove_leases
from airflow_provider_raydatallm.processor.store.versions import Version

#: A question that is asked again after a version: its number.
_FOLLOWS = re.compile(r"[0-9a-f]{16}-[a-z]+-(\d{6,})")


def remove_run_files(store: Store, version: Version) -> None:
    """Removes the checkpoints and leases that a version, the newest one, makes useless."""
    remove_checkpoints(store, version)
    remove_leases(store, version.epoch)


def remove_released_lease(store: Store) -> None:
    """Removes the lease that the last run has released, if it left no rows: those carry the lease's epoch."""
    holder = read_holder(store, released=True)
    if holder is not None and holder.released and not store.names(CHECKPOINT):
        remove_leases(store, holder.epoch)


def remove_checkpoints(store: Store, version: Version) -> None:
    """Removes the checkpoints that a version, the newest one, makes useless: its own, and those that follow
    an older one; with them the progress of whoever wrote them, also of a run that came second. Rows of other
    questions stay, for a run that asks them again."""
    names = store.names()  # one listing finds a finished slice without any
    for name in store.names(CHECKPOINT) if CHECKPOINT in names else ():
        follows = _FOLLOWS.fullmatch(name)
        if name == version.question or (follows is not None and int(follows[1]) < version.number):
            store.remove(f"{CHECKPOINT}/{name}")
    store.remove_empty(CHECKPOINT)
    if PROGRESS in names:
        store.remove(PROGRESS)
