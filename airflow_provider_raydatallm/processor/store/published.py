"""Finds what is published for a job with a few small reads and a listing: no input file is opened.

Imports only fsspec, so that the Airflow side can use it, too.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths, slice_paths
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input
from airflow_provider_raydatallm.processor.storage.filesystem import waiting_briefly
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import number_of_kept
from airflow_provider_raydatallm.processor.store.shown import DamagedVersionError, Shown
from airflow_provider_raydatallm.processor.store.versions import (
    PROGRESS,
    Commits,
    PublishedFile,
    SliceFolders,
    Version,
)

if TYPE_CHECKING:
    import pyarrow.dataset

#: How long the Airflow side reads the store before it leaves that to the cluster.
_READ_SECONDS = 15.0
_PROGRESS_BYTES = 1 << 20


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
    """Whether the folders show exactly this version, by a listing each."""
    folders = folders.of(version)
    try:
        return Shown.list(folders, version, folders.quarantine).is_right
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
    if versions.SUCCESS not in folders.table.names() or versions.newest_version(folders.metadata) is not None:
        return None
    return (
        f"{folders.table.url} shows a published slice, and {folders.metadata.url} knows of none: give the "
        "metadata path that the publishing task has as publish.metadata_path"
    )


def slice_progress(job: SliceJob) -> dict[str, Any] | None:
    """Returns the progress of the running or last failed run; None when the slice is published or new."""
    return read_progress(SliceFolders.open(job.paths))


def read_progress(folders: SliceFolders) -> dict[str, Any] | None:
    """Returns what a run wrote of its progress; None where there is nothing, or nothing that a run writes."""
    try:
        progress = folders.metadata.read_json(PROGRESS, _PROGRESS_BYTES)
    except (CorruptFileError, ValueError, RecursionError):
        return None
    return progress if isinstance(progress, dict) else None


def finished_report(job: SliceJob) -> Report | None:
    """Returns the report of a run that has nothing to do; None when the cluster must find out.

    Storage that this machine cannot read within `_READ_SECONDS` is not an error: the cluster may be able to.
    """
    if job.rerun.force or job.rerun.verify == "content":
        return None
    reports: list[Report | None] = []

    def read() -> None:
        # So that the thread ends soon, too.
        with contextlib.suppress(Exception), waiting_briefly(_READ_SECONDS):
            reports.append(current_report(job))

    thread = threading.Thread(target=read, name="ray-llm-status", daemon=True)
    thread.start()
    thread.join(_READ_SECONDS)
    report = reports[0] if reports else None
    if report is None or (job.rerun.retry_quarantined and report.counts.quarantined):
        return None
    return report.model_copy(update={"outcome": "unchanged"})


def answers_same_question(version: Version, job: SliceJob, listing: Listing) -> bool:
    """Whether the version was built from this input with the job's fingerprint."""
    return version.fingerprint == fingerprint(job) and version.input_hash == listing.hash


def published_files(
    slice_path: str, *, version: int | None = None, metadata_path: str | None = None
) -> list[str]:
    """Returns paths (or URLs) of the Parquet files of a published slice, in the order of its rows.

    :param slice_path: the slice's folder, `output_path` of the report.
    :param version: the number of an older version that is kept; the newest by default.
    :param metadata_path: the operator's, where it was set.
    :raises FileNotFoundError: when nothing is published, or that version was not kept.
    """
    return [
        store.path(name) if store.is_local else store.fs.unstrip_protocol(store.path(name))
        for store, name in _published(slice_path, version, metadata_path)
    ]


def published_dataset(
    slice_path: str, *, version: int | None = None, metadata_path: str | None = None
) -> pyarrow.dataset.Dataset:
    """Returns the rows of a published slice as a pyarrow dataset. See `published_files`."""
    import pyarrow.dataset

    files = _published(slice_path, version, metadata_path)
    fs = files[0][0].fs if files else None
    paths = [store.path(name) for store, name in files]
    return pyarrow.dataset.dataset(paths, filesystem=fs, format="parquet")


def kept_versions(folders: SliceFolders) -> list[Version]:
    """The versions whose files exist, the newest first."""
    commits = Commits.list(folders.metadata)
    newest = commits.newest()
    if newest is None:
        return []
    result = [newest]
    for folder in reversed(folders.staging.names(versions.KEPT)):
        number = number_of_kept(folder)
        try:
            version = versions.read_version(folders.metadata, number) if number is not None else None
        except SliceError as e:
            if e.kind != "input":
                raise
            continue  # its commit is damaged: the others can be read and restored all the same
        if version is not None and version.number < newest.number:
            kept = {
                f"{versions.KEPT}/{folder}/{n}" for n in folders.staging.names(f"{versions.KEPT}/{folder}")
            }
            if all(version.kept_name(f) in kept for f in version.all_files):
                result.append(version)
    return result


def locate_files(
    folders: SliceFolders, version: Version, *, quarantine: bool = True
) -> dict[PublishedFile, tuple[Store, str]]:
    """Finds each file of a version: in the folder that shows it, or staged, or kept.

    :param quarantine: also those of rows that failed.
    :raises FileNotFoundError: when one is nowhere.
    """
    folders.check_table(version)
    wanted = version.files
    if quarantine:
        folders, wanted = folders.of(version), version.all_files
    for _ in range(2):  # it may move on meanwhile
        files: dict[PublishedFile, tuple[Store, str]] = {}
        groups = [(folders.table, version.files), (folders.quarantine, version.quarantine)]
        for store, group in groups[: 1 + quarantine]:
            shown = set(store.names()) if group else set()
            files |= {f: (store, f.name) for f in group if f.name in shown}
        for folder, name_of in ((versions.STAGED, version.staged_name), (versions.KEPT, version.kept_name)):
            if len(files) < len(wanted):
                names = {f"{folder}/{name}" for name in folders.staging.tree(folder)}
                files |= {
                    f: (folders.staging, name_of(f)) for f in wanted if f not in files and name_of(f) in names
                }
        missing = [f.name for f in wanted if f not in files]
        if not missing:
            return files
    raise FileNotFoundError(f"{missing[0]} of version {version.number} in {folders.table.url} is gone")


def _published(slice_path: str, number: int | None, metadata_path: str | None) -> list[tuple[Store, str]]:
    folders = SliceFolders.open(slice_paths(slice_path, metadata_path))
    while True:
        newest = versions.newest_version(folders.metadata)
        if newest is None:
            raise FileNotFoundError(f"no slice is published in {folders.table.url}")
        version = newest
        if number not in (None, newest.number):
            kept = next((v for v in kept_versions(folders) if v.number == number), None)
            if kept is None:
                raise FileNotFoundError(
                    f"version {number} of {folders.table.url} is not kept; the newest is {newest.number}"
                )
            version = kept
        try:
            files = locate_files(folders, version, quarantine=False)
            for store, name in files.values():
                if store.is_local:  # what is no regular file would be followed, or waited for
                    store.open(name).close()
        except FileNotFoundError:
            if versions.newest_version(folders.metadata) != newest:
                continue  # it was replaced meanwhile
            raise
        return [files[f] for f in version.files]
