"""Who marked a task, or its run, as failed, by Airflow's audit log."""

from __future__ import annotations

from typing import Any

from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.page.xcom_values import parsed, text_if_short

#: How many entries of the log are looked through, the newest first, and characters of one.
_ENTRIES, _CHARACTERS = 20, 4_096


def find_mark(session: Session, dag_id: str, task_id: str, run_id: str, map_index: int) -> str | None:
    """Returns the user who marked the last try of a task instance, or its run, as failed, "" where the log
    does not say who; None where it knows of no mark."""
    ti = TaskInstance
    began = (
        select(ti.start_date)
        .where(ti.dag_id == dag_id, ti.task_id == task_id, ti.run_id == run_id, ti.map_index == map_index)
        .scalar_subquery()
    )
    of_task = and_(Log.event == "patch_task_instance", Log.task_id == task_id)
    entries = (
        select(Log.owner, text_if_short(Log.extra, _CHARACTERS).label("extra"))
        .where(Log.dag_id == dag_id, Log.run_id == run_id, Log.dttm >= began)
        .where(or_(of_task, Log.event == "patch_dag_run"))
        .order_by(Log.dttm.desc())
        .limit(_ENTRIES)
    )
    return next(
        (owner or "" for owner, extra in session.execute(entries) if _marks_failed(parsed(extra), map_index)),
        None,
    )


def _marks_failed(asked: Any, map_index: int) -> bool:
    """
    :param asked: what Airflow's API was asked: of all instances of a task where it names none.
    """
    if not isinstance(asked, dict) or "failed" not in (asked.get("new_state"), asked.get("state")):
        return False
    return asked.get("map_index") in (None, map_index, str(map_index))
