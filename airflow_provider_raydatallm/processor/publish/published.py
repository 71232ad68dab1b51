"""Finds what is published for a job with a few small reads and a listing: no input file is opened.

Imports only fsspec, so that the Airflow side can use it, too.
"""

from __future__ import annotations

from functools import partial

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input
from airflow_provider_raydatallm.processor.sinks.base import DamagedVersionError
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.storage.filesystem import tried_briefly, waiting_briefly
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Version


def current_report(job: SliceJob) -> Report | None:
    """Returns the published report for this job and the input as it is now, or None: also when the table does
    not show the published version yet."""
    version = _current_version(job)
    return None if version is None else version.to_report(job.slice_path)


def report_of_run(job: SliceJob, run: str) -> Report | None:
    """Returns the report of a run that ended without one: of the version that it published, or of an earlier
    one that it had nothing to add to."""
    version = _current_version(job)
    if version is None:
        return None
    if version.body.get("run") == run:
        return version.to_report(job.slice_path)
    return None if needs_rerun(job, version) else version.to_report(job.slice_path, "unchanged")


def needs_rerun(job: SliceJob, version: Version) -> bool:
    """Whether the job asks to run a finished slice again."""
    return job.rerun.force or (job.rerun.retry_quarantined and bool(version.quarantine))


def _current_version(job: SliceJob) -> Version | None:
    folders = SliceFolders.open(job.paths)
    version = versions.newest_version(folders.metadata)
    if version is None or version.fingerprint != fingerprint(job):
        return None
    instant = version.body["slice_instant"]
    if instant and job.slice_instant not in (None, instant):
        return None
    if not (is_shown(folders, version) and answers_same_question(version, job, list_input(job))):
        return None
    return version


def is_shown(folders: SliceFolders, version: Version) -> bool:
    """Whether the table shows exactly this version."""
    sink = open_sink(folders).of(version)
    try:
        return sink.is_shown(version)
    except DamagedVersionError:
        return False


def published_report(paths: SlicePaths) -> Report | str:
    """Returns the report of a slice's newest version, whatever it was made of, once its folder shows it;
    until then, what is there instead."""
    with waiting_briefly():
        folders = SliceFolders.open(paths)
        version = versions.newest_version(folders.metadata)
        if version is None:
            return hidden_metadata(folders) or f"{folders.table.url} is not published"
        if not is_shown(folders, version):
            return f"{folders.table.url} does not show version {version.number} yet"
        return version.to_report(folders.table.url)


def hidden_metadata(folders: SliceFolders) -> str | None:
    """Returns why nothing is known of a slice that its folder shows; None when it shows none."""
    if not open_sink(folders).shows_any() or versions.newest_version(folders.metadata) is not None:
        return None
    return (
        f"{folders.table.url} shows a published slice, and {folders.metadata.url} knows of none: give the "
        "metadata path that the publishing task has as publish.metadata_path"
    )


def finished_report(job: SliceJob) -> Report | None:
    """Returns the report of a run that has nothing to do; None when the cluster must find out.

    Storage that this machine cannot read in some seconds is not an error: the cluster may be able to.
    """
    if job.rerun.force or job.rerun.verify == "content":
        return None
    report = tried_briefly(partial(current_report, job))
    if report is None or (job.rerun.retry_quarantined and report.counts.quarantined):
        return None
    return report.model_copy(update={"outcome": "unchanged"})


def answers_same_question(version: Version, job: SliceJob, listing: Listing) -> bool:
    """Whether the version was built from this input with the job's fingerprint."""
    return version.fingerprint == fingerprint(job) and version.input_hash == listing.hash
