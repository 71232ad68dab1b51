"""What a DAG's schedule says of a task's slices, by the DAG as it is serialized in Airflow's database."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy import Select
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.expected_slices import ExpectedSlices, UnknownSlicesError
from airflow_provider_raydatallm.task.schedule import schedule_timezone, zone_name

log = logging.getLogger(__name__)

#: How many are kept.
_KEPT = 1_000


@dataclass(frozen=True)
class Schedule:
    """
    :param version: of the DAG: the hash of its serialized form.
    :param timezone: in which dates are slice keys; None where it cannot be known.
    :param slices: of the task; a text that says why where they cannot be known.
    :param start, end, catchup: of the DAG.
    :param upstream: the tasks that run before this one.
    """

    version: str | None
    timezone: str | None
    slices: ExpectedSlices | str
    start: datetime | None
    end: datetime | None
    catchup: bool
    upstream: frozenset[str]


#: By DAG and task: of the DAG's newest version, which is made with all of its tasks.
_known: dict[tuple[str, str], Schedule] = {}


def read_schedule(session: Session, dag_id: str, task_id: str) -> Schedule | None:
    """Returns None where Airflow has no such DAG, or this process cannot read it: a timetable of somebody's
    own may not be installed here."""
    latest: Select[Any] = SerializedDagModel.latest_item_select_object(dag_id)  # type: ignore[no-untyped-call]
    try:
        version = session.scalar(latest.with_only_columns(SerializedDagModel.dag_hash))
        known = _known.get((dag_id, task_id))
        if known is not None and known.version == version:
            return known
        serialized = session.scalar(latest)
        if serialized is None:
            return None
        serialized.load_op_links = False
        if len(_known) >= _KEPT:
            _known.clear()
        found = _known[dag_id, task_id] = schedule_of(serialized.dag, task_id, version)
        return found
    except Exception as e:
        log.info("The page does not know the schedule of DAG %s: %s", dag_id, e)
        return None


def schedule_of(dag: Any, task_id: str, version: str | None = None) -> Schedule:
    """
    :param dag: as the scheduler has it.
    """
    slices: ExpectedSlices | str
    try:
        slices = ExpectedSlices(dag, task_id)
    except UnknownSlicesError as e:
        slices = str(e)
    try:
        timezone = zone_name(schedule_timezone(dag))
    except RayLLMInputError as e:
        log.info("The page takes the timezone of DAG %s from its runs: %s", dag.dag_id, e)
        timezone = None
    upstream = dag.get_task(task_id).get_flat_relative_ids(upstream=True) if dag.has_task(task_id) else ()
    times = (dag.start_date, dag.end_date, bool(dag.catchup))
    return Schedule(version, timezone, slices, *times, upstream=frozenset(upstream))
