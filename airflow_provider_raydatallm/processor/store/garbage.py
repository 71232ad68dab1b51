"""Removes what abandoned runs left: checkpoints of slices that no run continues."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.storage import Store, open_fs
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.lease import CHECKPOINT, Lease

_ANY_KEY = "any-slice-key"


def abandoned_checkpoints(job: SliceJob, days: float) -> Iterator[tuple[Store, float]]:
    """Slices of the job's table whose checkpoint has not changed for `days`, and its age in days.

    The checkpoint of a live run is never among them: its lease beats every few seconds.
    """
    any_slice = job.model_copy(update={"slice_key": _ANY_KEY})
    trial_or_not = any_slice.model_copy(update={"max_rows": 1 if job.max_rows is None else None})
    for one in (any_slice, trial_or_not):
        fs, pattern = open_fs(f"{one.slice_path.replace(_ANY_KEY, '*')}/{CHECKPOINT}")
        for path in sorted(fs.glob(pattern)):
            newest = max(map(_modified_at, fs.find(path, detail=True).values()), default=0.0)
            age_days = (time.time() - newest) / 86400
            if age_days >= days:
                yield Store(fs.unstrip_protocol(path.rpartition("/")[0])), age_days


def remove_checkpoint(store: Store) -> None:
    """Removes a slice's checkpoint and its last progress, under its lease: a run may be starting."""
    lease = Lease.acquire(
        store,
        me="gc",
        published_epoch=lambda: versions.epoch(store),
        wait=False,
        stop_waiting=lambda holder: False,
        stale_seconds=0,
    )
    assert lease is not None
    try:
        for name in store.names(CHECKPOINT):
            if not name.startswith(("epoch-", "beat-")):
                lease.check()
                store.remove(f"{CHECKPOINT}/{name}")
        lease.check()
        store.remove(versions.PROGRESS)
    finally:
        lease.close()


def _modified_at(info: dict[str, Any]) -> float:
    """Epoch seconds of a file's last change; now, where the storage does not record it."""
    for name in ("mtime", "LastModified", "updated", "last_modified", "created"):
        value = info.get(name)
        if isinstance(value, dt.datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            return dt.datetime.fromisoformat(value).timestamp()
    return time.time()
