"""Sends the job that a record intends, with what it is told beside its spec."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.job.phase import BEHIND
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.record import JobRecord
from airflow_provider_raydatallm.task.job.waiter import heartbeat_key
from airflow_provider_raydatallm.task.queue.places import Turn

if TYPE_CHECKING:
    from airflow_provider_raydatallm.submit.ray_job import JobSubmission


def send_job(
    record: JobRecord,
    submission: JobSubmission,
    orphan_timeout: float | None,
    hook: RayHook,
    turn: Turn | None,
) -> None:
    """Submits the job, unless the cluster has it already.

    :param turn: of a task that has waited for it.
    :raises RayConnectionError, RayClusterUnfitError, RayUnreachableError: as `JobSubmission.submit`.
    """
    name, key = record.submission_id, heartbeat_key(record.submission_id)
    arguments = ["--name", name]
    if orphan_timeout is not None:
        arguments += ["--heartbeat-key", key, "--orphan-timeout", f"{orphan_timeout:g}"]
        arguments += ["--commit-alone"] if record.commits_alone else []
    if turn is not None and turn.place.waited_s >= 1:
        arguments += ["--waited", f"{turn.place.waited_s:.0f}"]
    if submission.finish_by is not None:
        arguments += ["--finish-by", f"{submission.finish_by:.0f}"]
    behind = {BEHIND: str(turn.behind)} if turn is not None and turn.behind else {}
    metadata = {**submission.metadata, **record.to_metadata(), **behind}
    if orphan_timeout is not None:
        hook.call(jobs_api.send_heartbeat(key))
    replace(submission, metadata=metadata).submit(hook, "run", name, record.nonce, arguments)
