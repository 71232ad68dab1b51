"""What is published for a job, for the price of a few small reads and a listing: no file of the input is
opened.

Only fsspec is imported, so that the Airflow side can ask where it can read the store.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.versions import PROGRESS, Version

#: How long the Airflow side looks before it leaves that to the cluster.
_LOOK_SECONDS = 15.0


def slice_status(job: SliceJob) -> Report | None:
    """The report of the slice that is published for this very job and the input as it is now; None when there
    is none."""
    store = Store(job.slice_path)
    version = versions.current(store)
    if version is None or version.manifest["fingerprint"] != job.fingerprint():
        return None
    if version.manifest["slice_instant"] and job.slice_instant not in (
        None,
        version.manifest["slice_instant"],
    ):
        return None
    if not (versions.is_whole(store, version) and versions.is_complete(store, version)):
        return None
    return version.to_report(version.report["outcome"]) if is_same(version, job, list_input(job)) else None


def slice_progress(job: SliceJob) -> dict[str, Any] | None:
    """What the run that is at work last said of itself, or the one that failed last; None when the slice is
    published, or was never begun."""
    progress: dict[str, Any] | None = Store(job.slice_path).read_json(PROGRESS)
    return progress


def finished_report(job: SliceJob) -> Report | None:
    """The report of a run that has nothing to do, if that can be told from here; None to have the cluster
    look.

    Storage that this machine cannot read, or that does not answer in `_LOOK_SECONDS`, is no error: the
    cluster may well.
    """
    if job.force_rerun:
        return None
    found: list[Report | None] = []

    def look() -> None:
        with contextlib.suppress(Exception):
            found.append(slice_status(job))

    thread = threading.Thread(target=look, name="ray-llm-status", daemon=True)
    thread.start()
    thread.join(_LOOK_SECONDS)
    report = found[0] if found else None
    if report is None or (job.retry_quarantined and report.counts.quarantined):
        return None
    return report.model_copy(update={"outcome": "unchanged"})


def is_same(version: Version, job: SliceJob, listing: Listing) -> bool:
    """Whether the version answers this question about this input."""
    manifest = version.manifest
    return bool(manifest["fingerprint"] == job.fingerprint() and manifest["input"]["hash"] == listing.hash)
