"""What is looked at before anything of a slice is published: whether the table shows its newest version, and
whether what is there is this slice's. Neither Arrow nor Ray is imported, for the Airflow side."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_raydatallm.contract.result.errors import SliceError, log_text
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish.reconcile import reconcile
from airflow_provider_raydatallm.processor.sinks.base import DamagedVersionError
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Commits, Version

logger = logging.getLogger(__name__)

#: What to do about slices that another timezone names otherwise.
_RENAMED = (
    "To keep the names, give the task a slice_key that formats its date as before, and to use the new ones, "
    "another output_path (see 'Names of slices after an upgrade' in docs/versions.md)"
)


def check_shown(folders: SliceFolders) -> None:
    """Makes the table show the newest version, unless its files are damaged.

    :raises SliceError: when no run would publish there: the newest commit is damaged or lost, or the folder
        holds files of others.
    """
    try:
        if reconcile(folders) is None:
            refuse_foreign_files(folders)
    except DamagedVersionError as e:
        logger.warning("%s: the next version replaces it", log_text(e))


def find_published(job: SliceJob, folders: SliceFolders) -> tuple[Version | None, int]:
    """Makes the table show the newest version, and returns it and its number; None when there is none (0), or
    its files are damaged.

    :raises SliceError: when its commit is damaged, or the table's folder holds files of others and no
        version.
    """
    try:
        version = reconcile(folders)
        if version is not None and job.rerun.verify == "content":
            open_sink(folders).of(version).check_content(version)
    except DamagedVersionError as e:
        logger.warning("%s: the slice is built again", log_text(e))
        return None, e.version.number
    except SliceError as e:
        if not job.rerun.force:
            raise
        logger.warning("%s: the slice is built again, because of rerun.force", log_text(e))
        return None, Commits.list(folders.metadata).newest_number()
    if version is None and refuse_foreign_files(folders):
        return find_published(job, folders)
    return version, version.number if version is not None else 0


def refuse_foreign_files(folders: SliceFolders) -> bool:
    """Whether another run published the slice's first version meanwhile.

    :raises SliceError: when a slice without a version has files already, which readers would take for its
        own.
    """
    stray = open_sink(folders).stray_files()
    if stray is None:
        return False
    if Commits.list(folders.metadata).newest() is not None:
        return True
    if not stray.is_published:
        why = "which this provider did not publish"
        advice = "Choose another output_path, or empty that folder"
    else:
        why = f"and {folders.metadata.url} has no commit of it"
        advice = (
            "Restore its metadata, give the publish.metadata_path that it was published with, or empty that "
            "folder"
        )
    raise SliceError(
        f"{folders.table.url} holds {stray.first!r} ({stray.count} file(s)), {why}",
        kind="input",
        advice=advice,
    )


def refuse_other_instant(job: SliceJob, version: Version) -> None:
    """:raises SliceError: when a version is of another date than the job, unless it may be replaced."""
    published_instant = version.body.get("slice_instant")
    has_moved = published_instant and job.slice_instant and published_instant != job.slice_instant
    if has_moved and not job.rerun.force:
        renamed = (f"Or its timezone has changed since: {_RENAMED}",) if job.other_slice_keys else ()
        raise SliceError(
            f"slice {job.slice_key!r} was published for {published_instant} and this run is for "
            f"{job.slice_instant}: two runs share one key, as source.slice_format "
            f"{job.source.slice_format!r} is too coarse for this schedule (of partitions, the timetable's "
            "key_format is)",
            kind="input",
            advice=(
                "Set a finer one: an hourly DAG needs '%Y-%m-%dT%H%z', say, where %z tells the two hours "
                "apart that have one name when clocks go back",
                "If the schedule's time of day was moved since, this is the same slice: give the task a "
                "slice_key that says so, or set rerun.force, which replaces it",
                *renamed,
            ),
        )


def refuse_another_name(of: SliceAddress, instant: str | None, other_keys: Iterable[str]) -> None:
    """Two slices of one instant would be rows that are there twice, and paid for twice."""
    for key in other_keys:
        version = versions.newest_version(SliceFolders.open(replace(of, slice_key=key).paths).metadata)
        if version is not None and version.body.get("slice_instant") == instant:
            raise SliceError(
                f"slice {of.slice_key!r} is of {instant}, which is published as {key!r}: the "
                "timezone of the keys has changed since",
                kind="input",
                advice=_RENAMED,
            )
