"""The life of one slice: inspect what is published, acquire the lease, plan, run inference, publish.

A crash at any instant, of any process, followed by another run gives the same published rows: none lost, none
twice, and no finished row answered again. A run that fails publishes nothing and leaves what was published
before unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError, log_text
from airflow_provider_raydatallm.contract.result.report import Counts, Report
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor import version_policy
from airflow_provider_raydatallm.processor.adapters.slice_adapters import SliceAdapters, read_adapters
from airflow_provider_raydatallm.processor.build_run import PROGRESS_SECONDS
from airflow_provider_raydatallm.processor.gates.own_checks import load_check
from airflow_provider_raydatallm.processor.inference.planning import plan_inference, request_builder
from airflow_provider_raydatallm.processor.inference.ray_cluster import Cluster, RayCluster
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input, short_hash
from airflow_provider_raydatallm.processor.input.own_folders import check_output_is_outside
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import Survey, first_values, survey_input
from airflow_provider_raydatallm.processor.input.types.codec import schema_to_json
from airflow_provider_raydatallm.processor.load_function import load_function
from airflow_provider_raydatallm.processor.metrics.progress import ProgressCallback, diagnose_run, is_recorded
from airflow_provider_raydatallm.processor.probes.find import find_probes
from airflow_provider_raydatallm.processor.publish.commit import discard
from airflow_provider_raydatallm.processor.publish.slice_checks import find_published
from airflow_provider_raydatallm.processor.ray_runtime.own_task import own_task
from airflow_provider_raydatallm.processor.request.answers.parsers import open_parser
from airflow_provider_raydatallm.processor.slice_report import slice_report
from airflow_provider_raydatallm.processor.store import lease, versions
from airflow_provider_raydatallm.processor.store.column_agreement import table_metadata
from airflow_provider_raydatallm.processor.store.epochs import newest_epoch_written
from airflow_provider_raydatallm.processor.store.lease import Lease, LeaseLostError
from airflow_provider_raydatallm.processor.store.leftovers import remove_what_runs_kept
from airflow_provider_raydatallm.processor.store.ownership import take_folders
from airflow_provider_raydatallm.processor.store.rejections import is_rejected
from airflow_provider_raydatallm.processor.store.run_record import leave_failure
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    KEEP_DAYS,
    MOST_DAYS,
    StagedVersion,
    StagedVersionError,
    find_staged,
)
from airflow_provider_raydatallm.processor.store.table_columns import TableColumns
from airflow_provider_raydatallm.processor.store.versions import Commits, NumberTakenError, Version
from airflow_provider_raydatallm.processor.version_build import VersionBuild

logger = logging.getLogger(__name__)

T = TypeVar("T")


def run_slice(
    job: SliceJob,
    progress: ProgressCallback,
    cluster: Cluster | None = None,
    name: str | None = None,
    finish_by: float | None = None,
    imports_s: float | None = None,
    before_commit: Callable[[], None] | None = None,
) -> Report:
    """Answers and publishes a slice. What an earlier run staged of it is published as it is.

    :param progress: called every few seconds with a step and, while rows are answered, the figures of
        `Meter.progress`.
    :param cluster: the Ray cluster that this process can reach by default.
    :param name: this run's name in messages of runs that wait for it; its process and host by default.
    :param finish_by: epoch seconds at which the slice should be finished; being late is only reported.
    :param imports_s: seconds from the process's start to this call, if it did nothing else.
    :param before_commit: called when everything is staged; nothing is published before it returns.
    :raises SliceError: when the slice cannot be answered; nothing was published then, and the finished rows
        are kept.
    """
    cluster = cluster or RayCluster()

    def run(build: VersionBuild, lease: Lease) -> Report:
        build.finish_by, build.imports_s = finish_by, imports_s
        build.before_commit = before_commit
        return build.run(lease, cluster)

    return _decide_and_act(job, progress, cluster, name, run)


def stage_slice(
    job: SliceJob,
    progress: ProgressCallback,
    cluster: Cluster | None = None,
    name: str | None = None,
    keep_days: float = KEEP_DAYS,
) -> StagedVersion | Report:
    """Answers a slice and stages its version, which then waits for somebody who commits or discards it
    (`publish.commit`). Returns the report where there is nothing to publish.

    :param keep_days: how long it waits before `gc` removes it.
    :raises SliceError: as of `run_slice`.
    """
    if not 0 < keep_days <= MOST_DAYS:
        raise SliceError(
            f"a staged version cannot be kept for {keep_days:g} days",
            kind="input",
            advice=f"Give a number above 0, and at most {MOST_DAYS:,.0f}",
        )
    cluster = cluster or RayCluster()

    def hold(build: VersionBuild, lease: Lease) -> StagedVersion:
        return build.hold(lease, cluster, keep_days)

    return _decide_and_act(job, progress, cluster, name, hold)


def _decide_and_act(
    job: SliceJob,
    progress: ProgressCallback,
    cluster: Cluster,
    name: str | None,
    act: Callable[[VersionBuild, Lease], T],
) -> T | Report:
    """:param act: what to do with a version that is to be built, under the lease."""
    check_output_is_outside(job)
    try:
        return _decide(job, progress, cluster, name, act)
    except BaseException as e:  # also a signal, or `sys.exit()` of the user's code
        if not isinstance(e, LeaseLostError):  # the run that holds it now says what becomes of the slice
            _leave_failure(job, e)
        raise


def _leave_failure(job: SliceJob, error: BaseException) -> None:
    """Leaves why the run failed in the table's metadata, unless its progress says so already."""
    if is_recorded(error):
        return
    try:
        leave_failure(job.address, diagnose_run(error, job), own_task())
    except Exception as e:
        logger.warning("could not leave the failure in %s: %s", job.paths.metadata, log_text(e))


def _decide(
    job: SliceJob,
    progress: ProgressCallback,
    cluster: Cluster,
    name: str | None,
    act: Callable[[VersionBuild, Lease], T],
) -> T | Report:
    folders = SliceFolders.open(job.paths)
    progress({"step": "plan"})
    version_policy.refuse_another_task(job, own_task())
    # If a newer version appears later, a run that this one waited for made it.
    last_seen_version = Commits.list(folders.metadata).highest
    inspect = partial(inspect_slice, job, folders, last_seen_version, progress=progress)
    build, report = inspect()
    if build is not None:
        build.check(cluster)  # before anything is written
        take_folders(job.address, own_task())
    while report is None:
        acquired = _acquire_lease(job, folders, last_seen_version, progress, name)
        if acquired is None:
            build, report = inspect(earlier_build=build)
            continue
        with contextlib.closing(acquired):
            # Another run may have published between the inspection and the lease.
            build, report = inspect(earlier_build=build)
            if build is not None:
                try:
                    return act(build, acquired)
                except NumberTakenError as e:
                    logger.info("%s: deciding again what is to be done", log_text(e))
    return report


def inspect_slice(
    job: SliceJob,
    folders: SliceFolders,
    last_seen_version: int = sys.maxsize,
    earlier_build: VersionBuild | None = None,
    progress: ProgressCallback = lambda progress: None,
    *,
    read_only: bool = False,
) -> tuple[VersionBuild | None, Report | None]:
    """Returns the version to build, or the report when there is none to build.

    :param earlier_build: the result of an earlier inspection, which is kept if its plan still holds.
    :param read_only: whether the table stays as it is, even if it does not show the published version.
    """
    if read_only:
        version = versions.newest_version(folders.metadata)
        base = version.number if version is not None else 0
    else:
        version, base = find_published(job, folders)
    listing = list_input(job)
    report = version_policy.report_if_current(job, listing, version, last_seen_version)
    if report is not None:
        assert version is not None
        if not read_only:  # they remain of a run that died after it published
            remove_what_runs_kept(folders, version)
        return None, report
    adapters = read_adapters(job)
    try:
        number, checkpoint = version_policy.next_version(
            job, listing, folders, version, base, adapters=adapters.digest
        )
    except NumberTakenError:
        return inspect_slice(job, folders, last_seen_version, earlier_build, progress, read_only=read_only)
    staged = find_staged(
        folders,
        question=checkpoint.question,
        input_hash=listing.hash,
        fingerprint=fingerprint(job),
        instant=job.slice_instant,
        follows=base,
    )
    if staged is not None and is_rejected(folders.metadata, staged):
        if not read_only:  # for who rejected it, and was killed
            with contextlib.suppress(StagedVersionError):  # published: then it is found there
                discard(folders, staged)
            return inspect_slice(job, folders, last_seen_version, earlier_build, progress)
        staged = None
    set_aside = None
    if staged is not None and _is_retried(job, staged):
        staged, set_aside = None, staged
    if earlier_build is not None and (earlier_build.plan.input_hash, earlier_build.checkpoint.question) == (
        listing.hash,
        checkpoint.question,
    ):
        return replace(
            earlier_build,
            number=number,
            base=version,
            follows=base,
            checkpoint=checkpoint,
            staged=staged,
            set_aside=set_aside,
        ), None
    table = TableColumns.read(table_metadata(folders))
    known = table.inputs(job.slice_key)
    types = short_hash([fingerprint(job), schema_to_json(known.schema), sorted(known.bound)])
    plan, survey = checkpoint.load_plan(listing, types), None
    if plan is None:
        survey = survey_input(job, listing, known)
        plan = survey.base
    for check in job.quality.own_checks:  # before a row is paid
        load_check(check)
    shape = open_parser(job, load_function(job.postprocess), plan.columns)
    if survey is not None and survey.has_rows and survey.only_in_table:
        _check_request_columns(job, survey, adapters)
    builder = request_builder(job, plan, adapters) if plan.units or (survey and survey.has_rows) else None
    if survey is not None:
        plan = survey.plan(builder.columns if builder is not None else None)
    inference = (
        plan_inference(job, plan, shape, builder, adapters) if builder is not None and plan.rows else None
    )
    if not plan.rows and job.source.on_empty != "publish":
        return None, _report_empty(job, listing, plan, version, base)
    if not plan.columns:
        raise _without_columns(job, folders)
    build = VersionBuild(
        job, folders, number, checkpoint, plan, table, types, shape, inference, version, base, progress,
        staged=staged, set_aside=set_aside,
        probes=find_probes(inference) if inference is not None else (),
    )  # fmt: skip
    build.check_columns(build.known_fields)
    return build, None


def _is_retried(job: SliceJob, staged: StagedVersion) -> bool:
    """Whether a version that waits for somebody has rows that are to be asked again."""
    return job.rerun.retry_quarantined and staged.is_held and bool(staged.version.quarantine)


def _acquire_lease(
    job: SliceJob, folders: SliceFolders, last_seen_version: int, progress: ProgressCallback, name: str | None
) -> lease.Lease | None:
    """Returns None when the run that held the lease published what this one would have."""
    reported_at = 0.0

    def is_published(holder: lease.LeaseHolder) -> bool:
        nonlocal reported_at
        if time.monotonic() - reported_at >= PROGRESS_SECONDS:
            progress({**holder.beat, "step": "attach", "holder": str(holder)})
            reported_at = time.monotonic()
        commits = Commits.list(folders.metadata)
        if commits.highest <= last_seen_version:
            return False
        return (
            version_policy.report_if_current(job, list_input(job), commits.newest(), last_seen_version)
            is not None
        )

    return lease.Lease.acquire(
        folders.metadata,
        me=name or f"process {os.getpid()} on {socket.gethostname()}",
        slice_key=job.slice_key,
        known_epoch=lambda: newest_epoch_written(folders.metadata),
        wait=job.rerun.on_running == "attach",
        stop_waiting=is_published,
    )


def _report_empty(job: SliceJob, listing: Listing, plan: Plan, version: Version | None, base: int) -> Report:
    """
    :param version: what is published; None when that is damaged, too.
    :param base: its number; 0 when there is none.
    """
    if job.source.on_empty == "fail":
        empty = f"{len(listing.files):,} file(s), of 0 bytes each" if listing.files else "no file"
        matches = f"{plan.files:,} file(s) without a row of it" if plan.files else empty
        first: tuple[str, ...] = ()
        where = f" where {job.source.column} is {job.slice_key!r}" if job.source.column else ""
        if plan.slice_filter is not None:
            column = plan.slice_filter.column
            column_type, values = first_values(job, column)
            where += f", and that column ({column_type}) begins with other values"
            first = (f"{values!r:.200}",)
        raise SliceError(
            f"slice {job.slice_key!r} is empty: {job.resolved_input_path} matches {matches}{where}",
            kind="input",
            advice=f"Check the path{' and source.column' * bool(where)}, or set source.on_empty='skip' or "
            "'publish'",
            row_texts=first,
        )
    if version is not None:
        return version.to_report(job.slice_path, "kept")
    if base:
        raise SliceError(
            f"version {base} of {job.slice_path} is damaged, and {job.resolved_input_path} holds no row to "
            "build it again",
            kind="input",
            advice="Restore its files or the input, or set source.on_empty='publish' to replace it by an "
            "empty slice",
        )
    return slice_report(job, "empty", counts=Counts(planned=0, succeeded=0))


def _without_columns(job: SliceJob, folders: SliceFolders) -> SliceError:
    return SliceError(
        f"slice {job.slice_key!r} is empty: {job.resolved_input_path} has no file that holds anything, and "
        f"no slice of {folders.table.url.rpartition('/')[0]} shows which columns an empty one has",
        kind="input",
        advice="Publish a slice with rows first, put a file with columns and no rows there, or set "
        "source.on_empty='skip'",
    )


def _check_request_columns(job: SliceJob, survey: Survey, adapters: SliceAdapters) -> None:
    """:raises SliceError: when the request names columns that the files lack. Those of the table's other
    slices are null here, and no request may read that."""
    try:
        request_builder(job, survey.own, adapters)
    except SliceError as e:
        if (column := e.failure.place.column) in survey.only_in_table:
            advice = f"Other slices of the table have {column!r}: if the input renamed it, rename it back"
            raise SliceError.of(replace(e.failure, advice=(*e.failure.advice, advice))) from e
        raise
