"""All tasks at a glance: in which states their slices are, those with failures first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from airflow.models.dag import DagModel
from airflow.models.xcom import XComModel
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.page import failures, index
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
from airflow_provider_raydatallm.page.upstream import DID_NOT_RUN, failed_before
from airflow_provider_raydatallm.page.xcom_values import parsed
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY
from airflow_provider_raydatallm.task.slice_entry import INDEX_KEY, SliceEntry

#: How many of a task's newest runs are looked at.
_RUNS = 60
#: How many of a task's last slices are shown one by one.
_MARKS = 30
#: By which tasks are listed, and of a mapped run's slices of the same name, the first is told.
_URGENCY: tuple[CellState, ...] = (
    "failed", "missing", "held", "running", "queued", "quarantined", "published", "empty",
)  # fmt: skip


class _Run(NamedTuple):
    """
    :param entry: None where the task has not come to its slice.
    :param date: of a run of the schedule, or of a backfill.
    :param partition: of the run, where it has one.
    :param at: when the task noted its slice, or else began.
    :param did_not_run: whether tasks before it failed.
    """

    run_id: str
    map_index: int
    state: CellState
    entry: SliceEntry | None
    date: datetime | None
    partition: str | None
    at: datetime | None
    failure: Failure | None
    did_not_run: bool


class Found(NamedTuple):
    """A task, its DAG, and how many runs of it Airflow has."""

    dag_id: str
    task_id: str
    dag: DagModel | None
    runs: int

    @property
    def name(self) -> str:
        return self.dag.dag_display_name if self.dag is not None else self.dag_id


def find_tasks(
    session: Session, dag_ids: set[str], readable: Callable[[set[str]], set[str]], name: str = ""
) -> list[Found]:
    """Finds the tasks of these DAGs that ever had a slice, or failed before they had one, by their names.

    :param readable: of some DAGs, returns those whose tasks may be told.
    :param name: a part of the DAG's or the task's name.
    """
    of_run = (XComModel.dag_id, XComModel.task_id, XComModel.run_id, XComModel.map_index)
    keys = XComModel.key.in_([INDEX_KEY, FAILURE_KEY])
    runs = select(*of_run).where(keys, XComModel.dag_id.in_(dag_ids)).distinct().subquery().c
    grouped = select(runs.dag_id, runs.task_id, func.count()).group_by(runs.dag_id, runs.task_id)
    counted = {(dag_id, task_id): count for dag_id, task_id, count in session.execute(grouped)}
    for task in index.list_kept_tasks(session, dag_ids):
        counted.setdefault(task, 0)
    told = readable({dag_id for dag_id, _ in counted})
    dags = {dag.dag_id: dag for dag in session.scalars(select(DagModel).where(DagModel.dag_id.in_(told)))}
    found = [
        Found(dag_id, task_id, dags.get(dag_id), count)
        for (dag_id, task_id), count in sorted(counted.items())
        if dag_id in told
    ]
    wanted = name.casefold()
    return [one for one in found if wanted in f"{one.name} {one.dag_id} {one.task_id}".casefold()]


def list_tasks(
    session: Session,
    tasks: list[Found],
    state: CellState | None = None,
    order: Order = "urgency",
    offset: int = 0,
    limit: int = 20,
) -> TasksPage:
    """
    :param tasks: by their names.
    :param state: lists only tasks with a slice in this state.
    """
    known = [(task, _Slices(session, task.dag_id, task.task_id)) for task in tasks]
    if state == "missing":
        for _, slices in known:
            slices.complete()
    known = [(task, slices) for task, slices in known if state is None or slices.states[state]]
    if order == "urgency":
        known.sort(key=lambda one: one[1].urgency)
    elif order == "newest":
        known.sort(key=lambda one: _seconds(one[1].newest), reverse=True)
    page = known[offset : offset + limit]
    for _, slices in page:
        slices.complete()
    lines = [
        TaskLine(
            dag_id=task.dag_id,
            task_id=task.task_id,
            dag_name=task.name,
            is_paused=bool(task.dag is not None and task.dag.is_paused),
            runs=task.runs,
            newest=slices.newest,
            states=slices.states,
            last=slices.in_order()[-_MARKS:],
            is_all=task.runs <= _RUNS,
            failed=slices.failed,
        )
        for task, slices in page
    ]
    return TasksPage(tasks=lines, total=len(known))


class _Slices:
    """A task's slices as its newest runs have them: of several runs of a slice, the newest is its state."""

    def __init__(self, session: Session, dag_id: str, task_id: str) -> None:
        self._session, self._task = session, (dag_id, task_id)
        self._marks: dict[str, SliceMark] = {}
        self._is_complete = False
        self._runs = _newest_runs(session, dag_id, task_id)
        for run in self._runs:
            if run.entry is not None and run.entry.trial is None:
                self._add(run, run.entry.slice_key)
        self._add_runs_without_slice(set(self._marks))

    def _add_runs_without_slice(self, known: set[str]) -> None:
        is_newest = True
        for run in self._runs:
            if run.entry is not None:
                is_newest = False
            elif run.state != "empty":
                key = self._key_of(run)
                # Where only the run would know its slice, it stands for itself until a later one has one.
                if key not in known if key is not None else is_newest:
                    self._add(run, key)

    def _add(self, run: _Run, key: str | None) -> None:
        place = f"run {run.run_id}" if key is None else key
        mark = SliceMark(
            slice_key=key, state=run.state, run_id=run.run_id, map_index=run.map_index,
            has_slice=run.entry is not None,
        )  # fmt: skip
        known = self._marks.setdefault(place, mark)
        # Of a task that is mapped over tables.
        if known.run_id == run.run_id and _URGENCY.index(mark.state) < _URGENCY.index(known.state):
            self._marks[place] = mark

    def complete(self) -> None:
        """Adds what Airflow has no run of: slices whose run it has removed, and those that are missing."""
        if self._is_complete:
            return
        self._is_complete = True
        archived = index.archived_keys(self._session, *self._task)
        keys = {mark.slice_key for mark in self._marks.values() if mark.slice_key is not None}
        found = find_dates_without_run(self._session, *self._task, self._schedule, keys, archived)
        dates = [run.date for run in self._runs if run.date is not None]
        # Runs before those that are looked at may have made the slices before.
        since = min(dates, default=None) if len(self._runs) == _RUNS else None
        for one in found.dates:
            is_told = since is None or one.date >= since
            if is_told and not one.archived and one.slice_key not in self._marks:
                self._marks[one.slice_key] = SliceMark(slice_key=one.slice_key, state="missing")
        if len(self._runs) < _RUNS and archived:
            for line in index.list_archived(self._session, *self._task, _RUNS - len(self._runs)):
                if line.trial is None:
                    mark = SliceMark(
                        slice_key=line.slice_key, state=line.state, run_id=line.run_id,
                        map_index=line.map_index, has_slice=True,
                    )  # fmt: skip
                    self._marks.setdefault(line.slice_key, mark)

    @property
    def states(self) -> Counter[CellState]:
        return Counter(mark.state for mark in self._marks.values())

    @property
    def newest(self) -> datetime | None:
        return self._runs[0].at if self._runs else None

    @property
    def urgency(self) -> tuple[int, int]:
        """The lower, the sooner somebody should look: by the worst state, and how many slices failed."""
        states = self.states
        return min(map(_URGENCY.index, states), default=len(_URGENCY)), -states["failed"]

    @property
    def failed(self) -> FailedSlice | None:
        """The last that failed."""
        runs = {(run.run_id, run.map_index): run for run in self._runs}
        failed = [
            (mark, runs.get((mark.run_id or "", mark.map_index)))
            for mark in reversed(self.in_order())
            if mark.state == "failed"
        ]
        if not failed:
            return None
        mark, run = failed[0]
        upstream = None
        if run is not None and run.did_not_run:
            upstream = failed_before(self._session, *self._task, [run.run_id], self._schedule)[run.run_id]
        reasons = {_reason_of(one) for _, one in failed}
        return FailedSlice(
            mark=mark,
            failure=failures.line_of(run.failure) if run is not None else None,
            upstream=upstream,
            others=len(reasons) - 1,
        )

    def in_order(self) -> list[SliceMark]:
        """By their names, of which the numbers count as numbers; what has none last."""
        return sorted(self._marks.values(), key=lambda mark: _natural(mark.slice_key))

    @cached_property
    def _schedule(self) -> Schedule | None:
        return read_schedule(self._session, *self._task)

    def _key_of(self, run: _Run) -> str | None:
        if run.partition is not None or run.date is None:
            return run.partition
        slices = self._schedule.slices if self._schedule is not None else ""
        return None if isinstance(slices, str) else slices.key_of(run.date)


def _newest_runs(session: Session, dag_id: str, task_id: str) -> list[_Run]:
    """Returns a task's newest runs, the one that wrote last first."""
    entry = XComModel
    newest = index.select_runs(dag_id, task_id).limit(_RUNS).subquery()
    its_entry = and_(  # by the table's own key: it is looked up, not searched
        entry.dag_run_id == newest.c.id,
        entry.task_id == task_id,
        entry.map_index == newest.c.map_index,
        entry.key == INDEX_KEY,
    )
    rows: Any = session.execute(
        select(*newest.c, index.if_short(entry.value), entry.timestamp, failures.record_text)
        .outerjoin(entry, its_entry)
        .outerjoin(failures.record, failures.is_of(dag_id, task_id, newest))
    )
    return sorted(map(_of_row, rows), key=lambda run: _seconds(run.at), reverse=True)


def _of_row(row: Any) -> _Run:
    entry = SliceEntry.parse(parsed(row.value)) if row.value is not None else None
    return _Run(
        row.run_id,
        row.map_index,
        index.state_of(row.state, entry),
        entry,
        row.date,
        row.partition,
        row.timestamp or row.start_date,
        failures.read_failure(row.state, row.failure, whole=False),
        row.state == DID_NOT_RUN,
    )


def _reason_of(run: _Run | None) -> Any:
    """What runs that failed for the same reason have in common: not the numbers in its sentence."""
    if run is None or run.failure is None:
        return run is not None and run.did_not_run
    return run.failure.kind, re.sub(r"\d+", "0", run.failure.sentence)


def _seconds(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()


def _natural(name: str | None) -> tuple[bool, list[tuple[bool, int, str]]]:
    """Sorts names with their numbers as numbers, and what has none last."""
    parts = re.findall(r"\d{1,18}|\D+|\d", name or "")
    return name is None, [(not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]
