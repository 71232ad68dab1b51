"""Stops the Ray job of a task that a person marked, alone or with its run, from Airflow's API server.

Which job that is, the task's record says. Whoever may edit that record must not have other jobs stopped, or
other paths called: the job itself has to name the task.
"""

from __future__ import annotations

import json
import logging

from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt, keep_trying
from airflow_provider_raydatallm.task.job.record import STATE_KEY, JobRecord

#: How long the connection and the cluster may take.
_STOP_SECONDS = 60.0
log = logging.getLogger(__name__)


def unfinished_attempts(dag_id: str, run_id: str) -> list[TaskAttempt]:
    """Returns the attempts of a marked run's tasks that have begun, and did not succeed."""
    from airflow.models.taskinstance import TaskInstance as Row
    from airflow.utils.session import create_session
    from sqlalchemy import select

    ids = (Row.dag_id, Row.task_id, Row.run_id, Row.map_index, Row.try_number)
    begun = (Row.dag_id == dag_id, Row.run_id == run_id, Row.try_number > 0, Row.state != "success")
    with create_session() as session:
        return [TaskAttempt(*row) for row in session.execute(select(*ids).where(*begun))]


async def stop_marked_job(attempt: TaskAttempt) -> None:
    """Stops the job that this attempt, or one before it, waited for, unless it is over, a later attempt waits
    for it, or `cancel_on_kill` is False.

    :raises Exception: of Airflow's database, the connection or the cluster; the job ends by `limits.orphan`.
    """
    # Blocks the other stops for milliseconds. One after another, they need one connection to the database.
    record = _read_record(attempt)
    if record is None or record.is_over or record.commits_alone or record.try_number > attempt.try_number:
        return
    hook = RayHook.to_cluster(record.cluster)
    await keep_trying(lambda: _stop(record, attempt, hook), hook, _STOP_SECONDS)


async def _stop(record: JobRecord, attempt: TaskAttempt, hook: RayHook) -> None:
    job_id = record.submission_id
    info = await hook.acall(jobs_api.get_status(job_id))
    if info is None or info.status in jobs_api.TERMINAL:
        return
    if not attempt.is_of(info.metadata):
        log.warning("Leaving Ray job %s running: it is not of the task that names it", job_id)
    elif await hook.acall(jobs_api.stop(job_id)):
        log.info("Stopped Ray job %s: its task was marked", job_id)


def _read_record(attempt: TaskAttempt) -> JobRecord | None:
    from airflow.state import TaskScope, get_state_backend

    value = get_state_backend().get(TaskScope(**attempt.task), STATE_KEY)
    return JobRecord.from_json(json.loads(value)) if value else None
