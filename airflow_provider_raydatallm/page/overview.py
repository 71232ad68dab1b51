"""All tasks at a glance: in which states their slices are, those with failures first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import pydantic
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import and_, func, null, select
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.page import index
from airflow_provider_raydatallm.page.answers import (
    CellState,
    FailedSlice,
    Order,
    SliceMark,
    TaskLine,
    TasksPage,
)
from airflow_provider_raydatallm.page.dates_without_run import find_dates_without_run
from airflow_provider_raydatallm.page.schedules import Schedule, read_schedule
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY
from airflow_provider_raydatallm.task.slice_entry import INDEX_KEY

#: Runs of a task, the newest, of whose slices the states are told.
_RUNS = 60
#: Slices of a task, the last, that are told one by one.
_MARKS = 30
#: By which tasks are listed, and of a mapped run's slices of the same name, the first is told.
URGENCY: tuple[CellState, ...] = ("failed", "missing", "running", "queued", "quarantined", "published", "empty")

_Task = tuple[str, str]


class _Noted(pydantic.BaseModel):
    """What of an entry a slice's state needs."""

    slice_key: str
    trial: str | None = None
    outcome: str | None = None
    counts: dict[str, int] = {}

    @classmethod
    def parse(cls, value: Any) -> _Noted | None:
        """Returns None for what a newer provider, or somebody else, wrote."""
        try:
            noted = cls.model_validate(value)
            noted.slice_key.encode()  # not of half a character, of which no answer can be made
        except (ValueError, OverflowError, RecursionError):
            return None
        return noted


class _Run(NamedTuple):
    """
    :param noted: None where the task has not come to its slice.
    :param date, partition: of the run, where it has one.
    :param at: when the task noted its slice, or else began.
    """

    run_id: str
    map_index: int
    state: CellState
    noted: _Noted | None
    date: datetime | None
    partition: str | None
    at: datetime | None


def list_tasks(
    session: Session,
    dag_ids: set[str],
    readable: Callable[[set[str]], set[str]],
    *,
    offset: int = 0,
    limit: int = 20,
    name: str = "",
    state: CellState | None = None,
    order: Order = "urgency",
) -> TasksPage:
    """Lists the tasks of these DAGs that ever had a slice, or failed before they had one.

    :param readable: of some DAGs, returns those whose tasks may be told.
    :param name: a part of the DAG's or the task's name.
    :param state: that one of a task's slices has, as far as they are told.
    """
    counted = _count_runs(session, dag_ids)
    told = readable({dag_id for dag_id, _ in counted})
    dags = {dag.dag_id: dag for dag in session.scalars(select(DagModel).where(DagModel.dag_id.in_(told)))}
    names = {task: _name_of(task, dags.get(task[0])) for task in counted if task[0] in told}
    tasks = sorted(task for task, known in names.items() if name.casefold() in known.casefold())
    slices = {task: _Slices(session, task) for task in tasks}
    if state == "missing":
        for known in slices.values():
            known.complete()
    tasks = [task for task in tasks if state is None or slices[task].states[state]]
    if order == "urgency":
        tasks.sort(key=lambda task: slices[task].urgency)
    elif order == "newest":
        tasks.sort(key=lambda task: _seconds(slices[task].newest), reverse=True)
    lines = []
    for task in tasks[offset : offset + limit]:
        dag, known = dags.get(task[0]), slices[task]
        known.complete()
        lines.append(
            TaskLine(
                dag_id=task[0],
                task_id=task[1],
                dag_name=dag.dag_display_name if dag is not None else task[0],
                is_paused=bool(dag is not None and dag.is_paused),
                runs=counted[task],
                newest=known.newest,
                states=known.states,
                last=known.last(),
                is_all=known.is_all,
                failed=known.failure(),
            )
        )
    return TasksPage(tasks=lines, total=len(tasks))


class _Slices:
    """A task's slices as its newest runs have them: of several runs of a slice, the newest is its state."""

    def __init__(self, session: Session, task: _Task) -> None:
        self._session, self._task = session, task
        self._marks: dict[str, SliceMark] = {}
        self._is_complete = False
        self._runs = _newest_runs(session, *task)
        for run in self._runs:
            if run.noted is not None and run.noted.trial is None:
                self._add(run, run.noted.slice_key)
        self._add_runs_without_slice(set(self._marks))

    def _add_runs_without_slice(self, known: set[str]) -> None:
        is_newest = True
        for run in self._runs:
            if run.noted is not None:
                is_newest = False
            elif run.state != "empty":
                key = self._key_of(run)
                # Where only the run would know its slice, it stands for itself until a later one comes to any.
                if key not in known if key is not None else is_newest:
                    self._add(run, key)

    def _add(self, run: _Run, key: str | None) -> None:
        place = f"run {run.run_id}" if key is None else key
        mark = SliceMark(
            slice_key=key, state=run.state, run_id=run.run_id, map_index=run.map_index,
            has_slice=run.noted is not None,
        )  # fmt: skip
        known = self._marks.setdefault(place, mark)
        # Of a task that is mapped over tables.
        if known.run_id == run.run_id and URGENCY.index(mark.state) < URGENCY.index(known.state):
            self._marks[place] = mark

    def complete(self) -> None:
        """Adds what Airflow has no run of: slices whose run it has removed, and those that are missing."""
        if self._is_complete:
            return
        self._is_complete = True
        archived = index.archived_keys(self._session, *self._task)
        keys = {mark.slice_key for mark in self._marks.values() if mark.slice_key is not None}
        found = find_dates_without_run(self._session, *self._task, self._schedule, keys, archived)
        since = min((run.date for run in self._runs if run.date is not None), default=None)
        for one in found.dates:
            is_told = since is not None and one.date >= since
            if is_told and not one.archived and one.slice_key not in self._marks:
                self._marks[one.slice_key] = SliceMark(slice_key=one.slice_key, state="missing")
        if len(self._runs) < _RUNS and archived:
            for line in index.list_archived(self._session, *self._task, _RUNS - len(self._runs)):
                mark = SliceMark(
                    slice_key=line.slice_key, state=line.state, run_id=line.run_id, map_index=line.map_index
                )
                self._marks.setdefault(line.slice_key, mark)

    @property
    def is_all(self) -> bool:
        """Whether these are all runs of the task."""
        return len(self._runs) < _RUNS

    @property
    def states(self) -> Counter[CellState]:
        return Counter(mark.state for mark in self._marks.values())

    @property
    def newest(self) -> datetime | None:
        return self._runs[0].at if self._runs else None

    @property
    def urgency(self) -> int:
        return min((URGENCY.index(mark.state) for mark in self._marks.values()), default=len(URGENCY))

    def last(self) -> list[SliceMark]:
        """The last slices by their names, in their order."""
        return sorted(self._marks.values(), key=lambda mark: _natural(mark.slice_key))[-_MARKS:]

    def failure(self) -> FailedSlice | None:
        """The last that failed, and why."""
        by_name = sorted(self._marks.values(), key=lambda mark: _natural(mark.slice_key), reverse=True)
        mark = next((mark for mark in by_name if mark.state == "failed" and mark.run_id is not None), None)
        if mark is None or mark.run_id is None:
            return None
        failure = index.read_failure(self._session, *self._task, mark.run_id, mark.map_index)
        return FailedSlice(mark=mark, failure=failure)

    @cached_property
    def _schedule(self) -> Schedule | None:
        return read_schedule(self._session, *self._task)

    def _key_of(self, run: _Run) -> str | None:
        if run.partition is not None or run.date is None:
            return run.partition
        schedule = self._schedule
        return None if schedule is None or isinstance(schedule.slices, str) else schedule.slices.key_of(run.date)


def _newest_runs(session: Session, dag_id: str, task_id: str) -> list[_Run]:
    """Returns a task's newest runs, the one that wrote last first."""
    ti, run, xcom = TaskInstance, DagRun, XComModel
    partition: Any = getattr(run, "partition_key", None)  # from Airflow 3.3 on
    its_xcom = and_(
        xcom.dag_run_id == run.id,
        xcom.task_id == ti.task_id,
        xcom.map_index == ti.map_index,
        xcom.key == INDEX_KEY,
    )
    newest = (
        select(
            ti.run_id, ti.map_index, ti.state, ti.start_date, xcom.timestamp, index.if_short(xcom.value),
            func.coalesce(run.data_interval_start, run.logical_date).label("date"),
            (null() if partition is None else partition).label("partition"),
        )
        .join(run, and_(run.dag_id == ti.dag_id, run.run_id == ti.run_id))
        .outerjoin(xcom, its_xcom)
        .where(ti.dag_id == dag_id, ti.task_id == task_id)
        .order_by(run.id.desc(), ti.map_index)
        .limit(_RUNS)
    )  # fmt: skip
    runs = []
    for row in session.execute(newest):
        noted = _Noted.parse(index.parsed(row.value))
        state = index.state_of(row.state, noted)
        runs.append(
            _Run(row.run_id, row.map_index, state, noted, row.date, row.partition, row.timestamp or row.start_date)
        )
    return sorted(runs, key=lambda run: _seconds(run.at), reverse=True)


def _seconds(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()


def _natural(name: str | None) -> tuple[bool, list[tuple[bool, int, str]]]:
    """Sorts names with their numbers as numbers, and what has none last."""
    parts = re.findall(r"\d{1,18}|\D+|\d", name or "")
    return name is None, [(not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]


def _name_of(task: _Task, dag: DagModel | None) -> str:
    return f"{dag.dag_display_name if dag is not None else ''} {task[0]} / {task[1]}"


def _count_runs(session: Session, dag_ids: set[str]) -> dict[_Task, int]:
    """How many runs of each task Airflow has that came to a slice, or failed before."""
    runs = select(XComModel.dag_id, XComModel.task_id, XComModel.run_id, XComModel.map_index)
    told = runs.where(XComModel.key.in_([INDEX_KEY, FAILURE_KEY]), XComModel.dag_id.in_(dag_ids)).distinct()
    of_run = told.subquery().c
    grouped = select(of_run.dag_id, of_run.task_id, func.count()).group_by(of_run.dag_id, of_run.task_id)
    counted = {(dag_id, task_id): count for dag_id, task_id, count in session.execute(grouped)}
    for task in index.list_kept_tasks(session, dag_ids):
        counted.setdefault(task, 0)
    return counted
