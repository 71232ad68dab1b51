"""Finds what is published for a job with a few small reads and a listing: no input file is opened.

Imports only fsspec, so that the Airflow side can use it, too.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.versions import PROGRESS, Version

if TYPE_CHECKING:
    import pyarrow.dataset

#: How long the Airflow side reads the store before it leaves that to the cluster.
_READ_SECONDS = 15.0


def current_report(job: SliceJob) -> Report | None:
    """Returns the published report for this job and the input as it is now, or None."""
    store = Store(job.slice_path)
    version = versions.newest_version(store)
    if version is None or version.manifest["fingerprint"] != fingerprint(job):
        return None
    instant = version.manifest["slice_instant"]
    if instant and job.slice_instant not in (None, instant):
        return None
    if not (versions.files_are_intact(store, version) and versions.is_complete(store, version)):
        return None
    if not answers_same_question(version, job, list_input(job)):
        return None
    return version.to_report(version.report["outcome"])


def slice_progress(job: SliceJob) -> dict[str, Any] | None:
    """Returns the progress of the running or last failed run; None when the slice is published or new."""
    progress: dict[str, Any] | None = Store(job.slice_path).read_json(PROGRESS)
    return progress


def finished_report(job: SliceJob) -> Report | None:
    """Returns the report of a run that has nothing to do; None when the cluster must find out.

    Storage that this machine cannot read within `_READ_SECONDS` is not an error: the cluster may be able to.
    """
    if job.force_rerun:
        return None
    reports: list[Report | None] = []

    def read() -> None:
        with contextlib.suppress(Exception):
            reports.append(current_report(job))

    thread = threading.Thread(target=read, name="ray-llm-status", daemon=True)
    thread.start()
    thread.join(_READ_SECONDS)
    report = reports[0] if reports else None
    if report is None or (job.retry_quarantined and report.counts.quarantined):
        return None
    return report.model_copy(update={"outcome": "unchanged"})


def answers_same_question(version: Version, job: SliceJob, listing: Listing) -> bool:
    """Whether the version was built from this input with the job's fingerprint."""
    manifest = version.manifest
    return bool(manifest["fingerprint"] == fingerprint(job) and manifest["input"]["hash"] == listing.hash)


def published_files(slice_path: str, *, version: int | None = None) -> list[str]:
    """Returns paths (or URLs) of the Parquet files of a published slice, in the order of its rows.

    :param slice_path: the slice's folder, `output_path` of the report.
    :param version: an older version that `keep_versions` kept; the newest by default.
    :raises FileNotFoundError: when nothing is published, or that version was not kept.
    """
    store = Store(slice_path)
    paths = _paths(store, version)
    return paths if store.is_local else [store.fs.unstrip_protocol(p) for p in paths]


def published_dataset(slice_path: str, *, version: int | None = None) -> pyarrow.dataset.Dataset:
    """Returns the rows of a published slice as a pyarrow dataset. See `published_files`."""
    import pyarrow.dataset

    store = Store(slice_path)
    return pyarrow.dataset.dataset(_paths(store, version), filesystem=store.fs, format="parquet")


def _paths(store: Store, version: int | None) -> list[str]:
    newest = versions.newest_version(store)
    if newest is None:
        raise FileNotFoundError(f"no slice is published in {store.url}")
    if version is None or version == newest.version_number:
        folder, chosen = "", newest
    else:
        kept = store.read_document(versions.commit_name(version))
        if kept is None:
            raise FileNotFoundError(
                f"version {version} of {store.url} is not kept; the newest is {newest.version_number}"
            )
        folder, chosen = f"{versions.VERSIONS}/{version:06}/", versions.Version(version, **kept)
    return [store.path(folder + f["path"]) for f in chosen.data_files]
