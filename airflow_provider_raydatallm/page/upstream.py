"""Which tasks failed before one that Airflow therefore did not run."""

from __future__ import annotations

from collections.abc import Collection

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.page.answers import UpstreamTask
from airflow_provider_raydatallm.page.schedules import Schedule, read_schedule

#: Airflow's state of a task that did not run because others failed.
DID_NOT_RUN = "upstream_failed"
#: How many are named.
_NAMED = 20


def failed_before(
    session: Session,
    dag_id: str,
    task_id: str,
    run_ids: Collection[str],
    schedule: Schedule | None = None,
) -> dict[str, list[UpstreamTask]]:
    """
    :param run_ids: in which the task did not run; each is answered, also where the DAG does not say which
        tasks are before this one.
    :param schedule: of the task, where it has been read already.
    """
    found: dict[str, list[UpstreamTask]] = {run_id: [] for run_id in run_ids}
    if not found:
        return found
    schedule = schedule or read_schedule(session, dag_id, task_id)
    if schedule is None or not schedule.upstream:
        return found
    ti = TaskInstance
    first = func.min(ti.map_index).label("map_index")
    failed = (
        select(ti.run_id, ti.task_id, first)
        .where(ti.dag_id == dag_id, ti.run_id.in_(found), ti.task_id.in_(schedule.upstream))
        .where(ti.state == "failed")
        .group_by(ti.run_id, ti.task_id)
        .order_by(ti.run_id, ti.task_id)
    )
    for row in session.execute(failed):
        if len(tasks := found[row.run_id]) < _NAMED:
            tasks.append(UpstreamTask(task_id=row.task_id, map_index=row.map_index))
    return found
