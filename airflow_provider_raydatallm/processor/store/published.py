"""What is published for a job, for the price of a few small reads and a listing: no file of the input is
opened.

Only fsspec is imported, so that the Airflow side can ask where it can read the store.
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

#: How long the Airflow side looks before it leaves that to the cluster.
_LOOK_SECONDS = 15.0


def current_report(job: SliceJob) -> Report | None:
    """The report of the slice that is published for this very job and the input as it is now; None when there
    is none."""
    store = Store(job.slice_path)
    version = versions.newest_version(store)
    if version is None or version.manifest["fingerprint"] != fingerprint(job):
        return None
    if version.manifest["slice_instant"] and job.slice_instant not in (
        None,
        version.manifest["slice_instant"],
    ):
        return None
    if not (versions.files_are_intact(store, version) and versions.is_complete(store, version)):
        return None
    return (
        version.to_report(version.report["outcome"])
        if answers_same_question(version, job, list_input(job))
        else None
    )


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
            found.append(current_report(job))

    thread = threading.Thread(target=look, name="ray-llm-status", daemon=True)
    thread.start()
    thread.join(_LOOK_SECONDS)
    report = found[0] if found else None
    if report is None or (job.retry_quarantined and report.counts.quarantined):
        return None
    return report.model_copy(update={"outcome": "unchanged"})


def answers_same_question(version: Version, job: SliceJob, listing: Listing) -> bool:
    """Whether the version answers this question about this input."""
    manifest = version.manifest
    return bool(manifest["fingerprint"] == fingerprint(job) and manifest["input"]["hash"] == listing.hash)


def published_files(slice_path: str, *, version: int | None = None) -> list[str]:
    """Paths (or URLs) of the Parquet files of a published slice, in the order of its rows.

    :param slice_path: the slice's folder, `output_path` of the report.
    :param version: an older version, which `keep_versions` kept; the newest by default.
    :raises FileNotFoundError: when nothing is published there, or that version was not kept.
    """
    store = Store(slice_path)
    paths = _paths(store, version)
    return paths if store.is_local else [store.fs.unstrip_protocol(p) for p in paths]


def published_dataset(slice_path: str, *, version: int | None = None) -> pyarrow.dataset.Dataset:
    """The rows of a published slice as a pyarrow dataset. See `published_files`."""
    import pyarrow.dataset

    store = Store(slice_path)
    return pyarrow.dataset.dataset(_paths(store, version), filesystem=store.fs, format="parquet")


def _paths(store: Store, version: int | None) -> list[str]:
    newest = versions.newest_version(store)
    if newest is None:
        raise FileNotFoundError(f"no slice is published in {store.url}")
    if version is None or version == newest.version_number:
        folder, found = "", newest
    else:
        kept = store.read_document(versions.commit_name(version))
        if kept is None:
            raise FileNotFoundError(
                f"version {version} of {store.url} is not kept; the newest is {newest.version_number}"
            )
        folder, found = f"{versions.VERSIONS}/{version:06}/", versions.Version(version, **kept)
    return [store.path(folder + f["path"]) for f in found.data_files]
