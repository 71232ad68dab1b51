"""Stops jobs: of earlier attempts, and on clusters that their task no longer uses."""

from __future__ import annotations

import time
from collections.abc import Iterable

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt
from airflow_provider_raydatallm.task.job.record import LeftJob
from airflow_provider_raydatallm.task.job.waiter import TaskLog

#: How long a job may take to stop; it has 30 s to write its last rows.
_STOP_SECONDS = 60.0


def stop_left_jobs(jobs: Iterable[LeftJob], task: TaskAttempt, log: TaskLog) -> list[LeftJob]:
    """Stops those of a task, each on its own cluster, and returns those that may still run."""
    left = []
    for job in jobs:
        try:
            hook = RayHook.to_cluster(job.cluster)
            info = hook.call(jobs_api.get_status(job.submission_id))
            if info is not None and info.status not in jobs_api.TERMINAL and task.is_of(info.metadata):
                log.info("Stopping Ray job %s: its task has left %s", job.submission_id, job.cluster)
                stop_and_wait(hook, job.submission_id)
        except (RayConnectionError, RayLLMJobError) as e:
            left.append(job)
            log.warning(
                "Ray job %s may run on %s, which its task has left, and cannot be stopped now: %s",
                job.submission_id, job.cluster, e,
            )  # fmt: skip
    return left


def stop_and_wait(hook: RayHook, submission_id: str) -> None:
    """
    :raises RayLLMJobError: when the job does not stop, or its cluster cannot be reached.
    """
    hook.call(jobs_api.stop(submission_id))
    until = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < until:
        info = hook.call(jobs_api.get_status(submission_id))
        if info is None or info.status in jobs_api.TERMINAL:
            return
        time.sleep(1.0)
    raise RayLLMJobError(
        f"Ray job {submission_id} did not stop within {_STOP_SECONDS:g} s",
        advice="Stop it with `ray job stop`",
    )
