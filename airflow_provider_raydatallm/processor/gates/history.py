"""What a table published before, from its commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import Version, newest_version


def newest_versions(job: SliceJob, *, before: bool = False) -> Iterator[Version]:
    """Yields what the slices of the job's table show, the highest keys first. One that cannot be read is left
    out.

    :param before: only slices whose keys are before the job's.
    """
    fs, path = open_fs(job.paths.metadata)
    table, _, own = path.rstrip("/").rpartition("/")
    try:
        entries = fs.ls(table, detail=True)
    except OSError:  # it does not exist, or may not be listed
        return
    folders = sorted((e["name"].rstrip("/") for e in entries if e["type"] == "directory"), reverse=True)
    for folder in folders:
        if before and folder.rpartition("/")[2] >= own:
            continue
        try:
            version = newest_version(Store(fs.unstrip_protocol(folder)))
        except (OSError, SliceError):
            continue
        if version is not None:
            yield version


def reports_before(job: SliceJob, slices: int) -> list[dict[str, Any]]:
    """Returns the reports of so many slices before the job's, the nearest first."""
    reports: list[dict[str, Any]] = []
    if slices:
        for version in newest_versions(job, before=True):
            reports.append(version.body["report"])
            if len(reports) == slices:
                break
    return reports
