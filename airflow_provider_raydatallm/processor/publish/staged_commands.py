"""What people do with staged versions: list, publish and discard them, by their names. Neither Arrow nor Ray
is imported, so that the Airflow side can, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish.commit import (
    PublishedByOthersError,
    commit,
    discard,
    find_published,
)
from airflow_provider_raydatallm.processor.publish.slice_checks import check_shown, refuse_another_name
from airflow_provider_raydatallm.processor.storage.filesystem import tried_briefly
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.leftovers import remove_what_runs_kept
from airflow_provider_raydatallm.processor.store.ownership import check_folders
from airflow_provider_raydatallm.processor.store.rejections import find_rejection, forget_rejection, reject
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    StagedVersion,
    StagedVersionError,
    read_staged,
    staged_names,
)
from airflow_provider_raydatallm.processor.store.versions import Commits, Version


class PublishedBeforeError(StagedVersionError):
    """A staged version of this name was published, and its document is gone."""

    def __init__(self, folders: SliceFolders, name: str, version: Version) -> None:
        super().__init__(f"{name} was published already, as version {version.number} of {folders.table.url}")
        self.version = version


def commit_for_people(of: SliceAddress, name: str | None, *, accepts_change: bool = False) -> Version:
    """Publishes a staged version of a slice, and removes what its run kept for it. Returns it, also when
    somebody else has just published it.

    :param name: of the staged version; None for the only one.
    :param accepts_change: whether the table's columns may change with it.
    :raises SliceError: when it cannot be published, or the folders are another table's; nothing was published
        then.
    """
    check_folders(of)
    folders = SliceFolders.open(of.paths)
    check_shown(folders)
    try:
        staged = get_staged(folders, name)
        refuse_another_name(of, staged.version.body.get("slice_instant"), staged.other_keys)
        version = commit(folders, of.slice_key, staged, accepts_change=accepts_change)
    except PublishedByOthersError as e:
        version = e.version
    except PublishedBeforeError as e:  # by a command that was killed then, perhaps
        _tidy(folders, e.version)
        raise
    _tidy(folders, version)
    return version


def publish_approved(job: SliceJob, name: str) -> Report:
    """Publishes the staged version that a person approved. Returns its report, also when somebody has
    published it before.

    :raises SliceError: see `commit_for_people`.
    """
    accepts_change = job.publish.on_schema_change == "accept"
    try:
        version = commit_for_people(job.address, name, accepts_change=accepts_change)
    except PublishedBeforeError as e:
        version = e.version
    return version.to_report(job.slice_path)


def is_known_here(job: SliceJob, name: str) -> bool | None:
    """Whether a version of that name is staged, or has been published; None where this machine does not see
    that in some seconds, or may have another disk than the cluster."""
    return tried_briefly(partial(_is_known_here, job, name))


def _is_known_here(job: SliceJob, name: str) -> bool | None:
    if is_known(job, name):
        return True
    metadata = SliceFolders.open(job.paths).metadata
    sees_slice = find_rejection(metadata, name) is not None or (
        not metadata.is_local and bool(metadata.names())
    )
    return False if sees_slice else None


def is_known(job: SliceJob, name: str) -> bool:
    """Whether a version of that name is staged, or has been published."""
    folders = SliceFolders.open(job.paths)
    return read_staged(folders, name) is not None or find_published(folders, name) is not None


def _tidy(folders: SliceFolders, version: Version) -> None:
    newest = versions.newest_version(folders.metadata)
    if newest is not None and newest.number == version.number:
        remove_what_runs_kept(folders, newest)


def discard_for_people(of: SliceAddress, name: str | None) -> str:
    """Discards a staged version of a slice, and returns its name. Where gates leave slices to people, its
    answers are left to them from here on, whatever else the gates say. See `discard`."""
    check_folders(of)
    folders = SliceFolders.open(of.paths)
    staged = get_staged(folders, name)
    discard_as_rejected(folders, staged)
    return staged.name


def discard_as_rejected(
    folders: SliceFolders, staged: StagedVersion, condition: str = "", rows: Mapping[str, Sequence[int]] = {}
) -> None:
    """
    :param condition, rows: of the rows that are asked again, if any (`rejections.Rejection`).
    :raises StagedVersionError: when it was published, and nothing is rejected then; or somebody had rejected
        it, and decided otherwise about its rows.
    """
    earlier = reject(folders.metadata, staged, condition, rows)  # first, so that nobody commits it meanwhile
    try:
        discard(folders, staged)
    except StagedVersionError:
        forget_rejection(folders.metadata, staged)
        raise
    if earlier is not None:
        asked = f", and the next run asks its rows again where {earlier.condition}" if earlier.rows else ""
        raise StagedVersionError(
            f"{staged.name} was rejected already{asked}",
            advice="Decide about the version that the next run stages",
        )


def discard_rejected(job: SliceJob, name: str) -> None:
    """Discards the staged version that a person rejected, unless somebody has rejected it before.

    :raises StagedVersionError: when it was published, or cannot be read, or was staged anew meanwhile.
    """
    if is_known(job, name) or find_rejection(SliceFolders.open(job.paths).metadata, name) is None:
        discard_for_people(job.address, name)


def staged_listing(folders: SliceFolders) -> list[dict[str, Any]]:
    """What is staged, for people. `held_by`: what the gates say that leave it to a person; None where it
    waits for nobody, or cannot be read. `problem`: why it cannot be published, if known."""
    newest = Commits.list(folders.metadata).newest_number()
    found = []
    for name in staged_names(folders.metadata):
        entry: dict[str, Any] = dict.fromkeys(
            (
                "staged_at",
                "follows",
                "keep_days",
                "rows",
                "quarantined",
                "model_source",
                "fingerprint",
                "held_by",
                "problem",
            )
        )
        try:
            staged = read_staged(folders, name)
        except StagedVersionError as e:
            found.append({"version": None, "staged": name, **entry, "problem": str(e)})
            continue
        if staged is None:
            continue
        body, counts = staged.version.body, staged.version.body["report"]["counts"]
        entry |= {
            "staged_at": staged.staged_at,
            "follows": staged.follows,
            "keep_days": staged.keep_days,
            "rows": counts.get("succeeded"),
            "quarantined": counts.get("quarantined"),
            "model_source": body.get("model_source"),
            "fingerprint": staged.version.fingerprint,
        }
        if staged.is_held:
            gates = staged.to_report(folders.table.url).gates or ()
            entry["held_by"] = [gate.model_dump(mode="json") for gate in gates if gate.verdict == "held"]
        if staged.follows != newest:
            entry["problem"] = "another version was published since: it can only be discarded"
        found.append({"version": None, "staged": name, **entry})
    return found


def get_staged(folders: SliceFolders, name: str | None) -> StagedVersion:
    """Returns the staged version of that name; without a name, the only one that there is.

    :raises StagedVersionError: when there is none, or it cannot be read.
    """
    names = staged_names(folders.metadata)
    if name is None:
        if len(names) != 1:
            found = f"{len(names)} staged versions: {', '.join(names)}" if names else "no staged version"
            raise StagedVersionError(
                f"{folders.table.url} has {found}", advice="Name one of them" if names else ()
            )
        name = names[0]
    staged = read_staged(folders, name)
    if staged is not None:
        return staged
    if (version := find_published(folders, name)) is not None:
        raise PublishedBeforeError(folders, name, version)
    raise StagedVersionError(
        f"no staged version of {folders.table.url} is named {name!r} (it has: {', '.join(names) or 'none'})"
    )
