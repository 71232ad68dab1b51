"""Turns a job's report or verdict into the task's outcome: the value for XCom, or the record of a failure."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.gpus_held import GpusHeld
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths
from airflow_provider_raydatallm.task.job.failure import explain_failure
from airflow_provider_raydatallm.task.job.verdict import (
    ClusterUnreachable,
    EndedWithoutReport,
    Failed,
    Unconfirmed,
)
from airflow_provider_raydatallm.task.job.waiter import JobRef

#: Outcomes whose figures are those of an earlier job.
_OF_OTHERS = ("unchanged", "kept")


def build_result(
    report: Report,
    paths: SlicePaths,
    job: JobRef | None,
    *,
    task_start: float,
    job_start: float | None,
    gpus_held: GpusHeld | None = None,
) -> dict[str, Any]:
    """Returns the operator's `return_value`.

    :param paths: the slice's folders.
    :param job: the job that this attempt waited for, if any.
    :param task_start: epoch seconds, by this machine's clock.
    :param job_start: epoch seconds at which the report's job started, by the cluster's clock.
    :param gpus_held: of a cluster that was made for the task.
    """
    total = time.time() - task_start
    queued = None if job_start is None else round(min(max(job_start - task_start, 0.0), total), 3)
    return report.to_xcom(
        report_path=None if report.published_version is None else paths.report(report.published_version),
        ray_job_id=job.submission_id if job is not None and report.outcome not in _OF_OTHERS else None,
        dashboard_url=job.url or None if job is not None else None,
        queued=queued,
        total=round(total, 3),
        gpus_held=gpus_held,
    )


def failure_of(
    verdict: Failed | EndedWithoutReport | ClusterUnreachable | Unconfirmed, job_id: str
) -> Failure:
    """Returns the record of a job that has no result."""
    if isinstance(verdict, Failed):
        return verdict.failure
    if isinstance(verdict, Unconfirmed):
        return Failure(
            "stopped",
            f"{verdict.reason}: Ray job {job_id} answered its rows, and published nothing, for it waited "
            "limits.orphan in vain for Airflow's word that the task waits for it",
            advice=("Finished rows are kept: the task's next run publishes them",),
        )
    if isinstance(verdict, ClusterUnreachable):
        may_run = (
            f"Ray job {job_id} may still be running: the task's next run looks for it",
            "Without one it publishes nothing, and ends after limits.orphan",
        )
        return replace(verdict.failure, advice=(*verdict.failure.advice, *may_run))
    if verdict.why == "unknown":
        return Failure(
            "transient", f"Ray job {job_id} no longer exists on the cluster, and published nothing"
        )
    status = "STOPPED" if verdict.why == "stopped" else "FAILED"
    failure = explain_failure(status, verdict.message, verdict.last_lines)
    published = f"Ray job {job_id} ended without a report, and published nothing"
    return replace(failure, advice=(*failure.advice, published), log=verdict.last_lines)
