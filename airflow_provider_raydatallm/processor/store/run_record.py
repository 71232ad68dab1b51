"""The file by which a slice's last run says what it does, or why it failed. Imports only fsspec, for the
Airflow side.

Only the holder of the slice's lease writes it. After a failed run it stays until the next run replaces it or
publishes: a published slice has no such file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress
from airflow_provider_raydatallm.processor.ray_runtime.own_task import own_job
from airflow_provider_raydatallm.processor.storage.filesystem import tried_briefly
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import PROGRESS
from airflow_provider_raydatallm.processor.store.lease import Lease, LeaseHolder, LeaseLostError
from airflow_provider_raydatallm.processor.store.leftovers import lease_to_tidy
from airflow_provider_raydatallm.processor.store.marks import names_task
from airflow_provider_raydatallm.processor.store.ownership import check_folders
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

_PROGRESS_BYTES = 1 << 20


def read_progress(folders: SliceFolders) -> dict[str, Any] | None:
    """Returns what a run wrote of its progress; None where there is nothing, or nothing that a run writes."""
    try:
        progress = folders.metadata.read_json(PROGRESS, _PROGRESS_BYTES)
    except (CorruptFileError, ValueError, RecursionError):
        return None
    return progress if isinstance(progress, dict) else None


def write_progress(
    store: Store, lease: Lease, slice_key: str, task: Mapping[str, str] | None, progress: Mapping[str, Any]
) -> None:
    """Writes nothing once the lease is lost. By its Ray job, Airflow knows which try the run was of.

    :param task: the Airflow task of the run, if it is of one.
    """
    if lease.lost:
        return
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    run = {"slice_key": slice_key, "when": now, "epoch": lease.epoch, "task": task, "job": own_job()}
    try:
        lease.check()
        store.put_json(PROGRESS, {**run, **progress})
        lease.check()
    except LeaseLostError:
        # The lease was lost between check and put; the new holder may have finished already.
        if (store.read_json(PROGRESS) or {}).get("epoch") == lease.epoch:
            store.remove(PROGRESS)


def remove_progress(store: Store, lease: Lease) -> None:
    """Removes what runs wrote: a version waits for somebody, and no run is at work or has failed."""
    if not lease.lost:
        store.remove(PROGRESS)


def leave_failure(
    of: SliceAddress,
    failure: Failure,
    task: Mapping[str, str] | None = None,
    is_over: Callable[[LeaseHolder], bool] = lambda holder: False,
) -> None:
    """Leaves why a run failed, and when, unless another run is at work, or the table names other tasks and
    not this one: for readers of the table.

    :param is_over: as of `Lease.acquire`.
    :raises SliceError: when a folder belongs to another table, or the newest commit cannot be read; then
        nothing is changed.
    """
    check_folders(of)
    folders = SliceFolders.open(of.paths)
    if task is not None and names_task(Store(of.table_paths.staging), task) is False:
        return  # of a task that publishes nothing here
    if (version := versions.newest_version(folders.metadata)) is not None:
        folders.check_table(version)
    lease = lease_to_tidy(folders, of.slice_key, is_over)
    if lease is not None:
        with contextlib.closing(lease):
            progress = {"step": "failed", "failure": failure.to_json()}
            write_progress(folders.metadata, lease, of.slice_key, task, progress)


def try_to_leave_failure(
    of: SliceAddress,
    failure: Failure,
    task: Mapping[str, str],
    is_over: Callable[[LeaseHolder], bool],
) -> None:
    """As `leave_failure`, for the Airflow side, which need not reach the store. It gives up in some seconds,
    and puts nothing on a disk of its own where the table is on the cluster's."""

    def leave() -> None:
        beside = Store(of.table_paths.table.rpartition("/")[0])
        if not beside.is_local or os.path.isdir(beside.root):
            leave_failure(of, failure, task, is_over)

    tried_briefly(leave)
