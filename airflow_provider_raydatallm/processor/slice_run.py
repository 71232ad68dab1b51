"""The life of one slice: look at what is published, take the lease, plan, answer what is missing, publish.

A crash at any instant, of any process, followed by another run gives the same published rows: none lost, none
twice, and no finished row answered again. A run that fails publishes nothing and leaves what was published
before as it was.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.report import Counts, Report
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.cluster.ray_cluster import Cluster, InferencePlan, RayCluster
from airflow_provider_raydatallm.processor.engines.registry import load_engine
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input
from airflow_provider_raydatallm.processor.input.plan import Plan, make_plan
from airflow_provider_raydatallm.processor.metrics.progress import ProgressCallback
from airflow_provider_raydatallm.processor.publish import publication
from airflow_provider_raydatallm.processor.request.answer_shape import AnswerParser
from airflow_provider_raydatallm.processor.request.prompt import RequestBuilder, structured_outputs
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
from airflow_provider_raydatallm.processor.store.lease import (
    Lease,
    LeaseHolder,
    LeaseLostError,
    remove_leases,
)
from airflow_provider_raydatallm.processor.store.published import answers_same_question
from airflow_provider_raydatallm.processor.store.versions import Version
from airflow_provider_raydatallm.processor.version_build import PROGRESS_SECONDS, VersionBuild, report_of
from airflow_provider_raydatallm.processor.version_policy import (
    Mode,
    find_published,
    needs_rerun,
    next_version,
    report_if_current,
)


def run_slice(
    job: SliceJob,
    progress: ProgressCallback,
    cluster: Cluster | None = None,
    name: str | None = None,
    finish_by: float | None = None,
    imports: float | None = None,
) -> Report:
    """Answer and publish a slice.

    :param progress: called every few seconds with a step and, while rows are answered, the figures of
        `Meter.progress`.
    :param cluster: who answers; the Ray cluster that this process can reach by default.
    :param name: what runs that wait for this one call it; its process and host by default.
    :param finish_by: epoch seconds at which the slice should be finished; being late is told, no more.
    :param imports: seconds from the process's beginning to this, where it did nothing else.
    :raises SliceError: when the slice cannot be answered; nothing was published then, and the finished rows
        are kept.
    """
    _refuse_output_inside_input(job)
    store = Store(job.slice_path)
    progress({"step": "plan"})
    before = versions.highest_commit(
        store
    )  # what is published after this was published by a run that we waited for
    cluster = cluster or RayCluster()
    making, report = inspect_slice(job, store, before, None, progress)
    if making is not None:
        making.check(cluster)  # before anything is written
    while report is None:
        lease = _acquire(job, store, before, progress, name)
        if lease is None:
            making, report = inspect_slice(job, store, before, making, progress)
            continue
        with contextlib.closing(lease):
            # What was seen before the lease was had may be another run's past.
            _complete(job, store, lease)
            making, report = inspect_slice(job, store, before, making, progress)
            if report is None:
                assert making is not None
                making.finish_by, making.imports = finish_by, imports
                return making.finish(lease, cluster)
    return report


def inspect_slice(
    job: SliceJob, store: Store, before: int, known: VersionBuild | None, progress: ProgressCallback
) -> tuple[VersionBuild | None, Report | None]:
    """What is to be made, or the report when nothing is.

    :param known: what an earlier look found: its plan is kept if it still holds.
    """
    version, listing = find_published(job, store), list_input(job)
    if (report := report_if_current(job, store, listing, version, before)) is not None:
        assert version is not None
        # Of a run that died when all but this was done.
        remove_leases(store, version.epoch)
        return None, report
    if version is not None and answers_same_question(version, job, listing) and not needs_rerun(job, version):
        return None, None  # only what derives from its commit is missing
    number, mode = next_version(job, listing, store, version)
    checkpoint = Checkpoint(store, number, fingerprint(job), mode)
    if known is not None and (known.plan.input_hash, known.checkpoint.folder) == (
        listing.hash,
        checkpoint.folder,
    ):
        return known, None
    making = _prepare(job, store, listing, version, checkpoint, mode, progress)
    if not making.plan.rows and job.on_empty != "publish":
        return None, _nothing(job, making.plan)
    return making, None


def _acquire(
    job: SliceJob, store: Store, before: int, progress: ProgressCallback, name: str | None
) -> Lease | None:
    """The lease; None when the run that had it published what this one would have."""

    said = 0.0

    def finished(other: LeaseHolder) -> bool:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS:
            progress({**other.says, "step": "attach", "holder": str(other)})
            said = time.monotonic()
        if versions.highest_commit(store) == before:
            return False
        version = find_published(job, store)
        return report_if_current(job, store, list_input(job), version, before) is not None

    return Lease.acquire(
        store,
        me=name or f"process {os.getpid()} on {socket.gethostname()}",
        floor=lambda: versions.epoch(store),
        wait=job.on_running == "attach",
        waiting=finished,
    )


def _complete(job: SliceJob, store: Store, lease: Lease) -> None:
    """Write what derives from the newest commit, if the run that made it died before it could."""
    version = find_published(job, store)
    if version is not None and not versions.is_complete(store, version):
        try:
            publication.write_derived_files(store, version, lease, job.keep_versions)
        except LeaseLostError:
            publication.roll_back(store)
            raise
    if version is not None:
        versions.remove_checkpoints(store, version.version_number)


def _nothing(job: SliceJob, plan: Plan) -> Report:
    if job.on_empty == "fail":
        found = f"{plan.files} file(s) without a row of it" if plan.files else "no file"
        raise SliceError(
            f"slice {job.slice_key!r} is empty: {job.resolved_input_path} matches {found}. "
            "Check the path, or set on_empty='skip' or 'publish'",
            kind="input",
        )
    return report_of(job, "empty", counts=Counts(planned=0, succeeded=0))


def _prepare(
    job: SliceJob,
    store: Store,
    listing: Listing,
    version: Version | None,
    checkpoint: Checkpoint,
    mode: Mode,
    progress: ProgressCallback,
) -> VersionBuild:
    """Plan the slice and check all that can be checked before anything is written or spent."""
    plan = checkpoint.load_plan(listing.hash) or make_plan(job, listing)
    preprocess, postprocess = _function(job.preprocess), _function(job.postprocess)
    shape = AnswerParser(job, postprocess)
    question = None
    if plan.rows:
        publication.check_columns(job, plan, shape.fields or [])
        builder = RequestBuilder(
            plan.columns,
            prompt=job.prompt,
            system_prompt=job.system_prompt,
            sampling_params=job.sampling_params,
            structured_outputs=structured_outputs(
                choices=job.choices, output_schema=job.output_schema, regex=job.regex, grammar=job.grammar
            ),
            preprocess=preprocess,
        )
        question = InferencePlan(job, plan, builder, load_engine(job)(job, plan.rows), shape)
    return VersionBuild(job, store, checkpoint, plan, shape, question, version, mode, progress)


def _function(reference: str | None) -> Callable[[dict[str, Any]], Any] | None:
    if reference is None:
        return None
    module, _, name = reference.partition(":")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except SliceError:
        raise
    except Exception as e:  # importing runs the user's module, which may raise anything
        what = f"{type(e).__name__}: {e}"
        raise SliceError(
            f"{reference!r} cannot be loaded on the cluster ({what}). Ship its code with code_paths",
            kind="input",
        ) from e
    if not callable(found):
        raise SliceError(f"{reference!r} is no function", kind="input")
    return found


def _refuse_output_inside_input(job: SliceJob) -> None:
    given, made = job.resolved_input_path.rstrip("/") + "/", job.slice_path.rstrip("/") + "/"
    if made.startswith(given):
        raise SliceError(
            f"the slice folder {job.slice_path} lies inside the input {job.resolved_input_path}: choose "
            "another output_path",
            kind="input",
        )
