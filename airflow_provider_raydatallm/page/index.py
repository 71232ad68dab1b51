"""Reads the index of slices (`task.slice_entry`) from Airflow's database, and never from storage."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from airflow.models.asset import AssetModel, TaskOutletAssetReference
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.xcom import XComModel
from sqlalchemy import Select, String, and_, case, cast, func, null, or_, select, tuple_
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.page import failures
from airflow_provider_raydatallm.page.answers import (
    AssetLine,
    RunWithoutSlice,
    SliceLine,
    SlicesPage,
    State,
    TaskRun,
    Try,
)
from airflow_provider_raydatallm.page.dates_without_run import find_dates_without_run
from airflow_provider_raydatallm.page.schedules import Schedule, read_schedule
from airflow_provider_raydatallm.page.upstream import DID_NOT_RUN, failed_before
from airflow_provider_raydatallm.page.xcom_values import parsed, text_if_short
from airflow_provider_raydatallm.task.slice_entry import (
    ENTRY_CHARACTERS,
    INDEX_KEY,
    SliceEntry,
    SliceFigures,
    index_key,
)
from airflow_provider_raydatallm.task.slice_key import SCHEDULED_RUNS

try:
    from airflow.models.asset_state_store import AssetStateStoreModel
except ImportError:  # before Airflow 3.3
    AssetStateStoreModel = None  # type: ignore[assignment,misc]

log = logging.getLogger(__name__)

#: States of a task that waits for a worker, or to be tried again; None is that of a cleared one.
_QUEUED = {None, "scheduled", "queued", "up_for_retry", "up_for_reschedule", "restarting"}
_FAILED = {"failed", "upstream_failed"}
_RUNNING = {"running", "deferred", "awaiting_input"}
#: How many runs whose entry has a slice's key in it are looked through for those of the slice.
_HISTORY_RUNS = 2_000
#: How many runs without a slice are listed: a backfill makes all of its runs at once.
_RUNS_WITHOUT_SLICE = 2_000


class RunOfSlice(NamedTuple):
    """An entry and the task instance that wrote it, with the record of its failure.

    :param task_state: Airflow's; None of one that was cleared or removed.
    """

    entry: SliceEntry
    line: SliceLine
    failure: Failure | None = None
    task_state: str | None = None


def with_upstream(
    session: Session,
    dag_id: str,
    task_id: str,
    runs: Sequence[RunOfSlice],
    schedule: Schedule | None = None,
) -> list[RunOfSlice]:
    """Adds which tasks failed before those that did not run this time."""
    not_run = [run.line.run_id for run in runs if run.task_state == DID_NOT_RUN]
    found = failed_before(session, dag_id, task_id, not_run, schedule)
    return [
        run._replace(line=run.line.model_copy(update={"upstream": found[run.line.run_id]}))
        if run.task_state == DID_NOT_RUN
        else run
        for run in runs
    ]


def list_kept_tasks(session: Session, dag_ids: set[str]) -> list[tuple[str, str]]:
    """Lists the tasks of these DAGs of which slices are kept in an asset's state store."""
    if AssetStateStoreModel is None:
        return []
    store = AssetStateStoreModel
    kept = select(store.last_updated_by_dag_id, store.last_updated_by_task_id).distinct()
    kept = kept.where(store.key.startswith(f"{INDEX_KEY}/"), store.last_updated_by_dag_id.in_(dag_ids))
    return [(str(dag_id), str(task_id)) for dag_id, task_id in session.execute(kept)]


def list_archived(session: Session, dag_id: str, task_id: str, limit: int) -> list[SliceLine]:
    """Lists the latest slices of a task of which Airflow has removed the runs."""
    if AssetStateStoreModel is None:
        return []
    page = _kept_with_states(dag_id, task_id, _latest_first(_kept(dag_id, task_id)).limit(limit))
    return [run.line for row in session.execute(page) if (run := _of_kept(row)) is not None]


def list_slices(session: Session, dag_id: str, task_id: str, offset: int, limit: int) -> SlicesPage:
    """Lists a task's runs of slices: those that Airflow has, then those that it removed."""
    entries = _entries(dag_id, task_id)
    count = _count(session, entries)
    page = _with_states(dag_id, task_id, _newest_first(entries).offset(offset).limit(limit))
    runs = [_of_row(row) for row in session.execute(page)] if offset < count else []
    total = count
    if AssetStateStoreModel is not None:
        kept = _kept(dag_id, task_id)
        total += _count(session, kept)
        if len(runs) < limit and offset + len(runs) < total:
            later = _latest_first(kept).offset(max(offset - count, 0)).limit(limit - len(runs))
            runs += [_of_kept(row) for row in session.execute(_kept_with_states(dag_id, task_id, later))]
    schedule = read_schedule(session, dag_id, task_id)
    timezone = schedule.timezone if schedule is not None else None
    told = with_upstream(session, dag_id, task_id, [run for run in runs if run is not None], schedule)
    readable = [run.line.model_copy(update={"timezone": timezone or run.line.timezone}) for run in told]
    listed = SlicesPage(slices=readable, total=total, unreadable=len(runs) - len(readable))
    if offset == 0:
        listed.without_slice = _list_without_slice(session, dag_id, task_id, schedule)
        archived = archived_keys(session, dag_id, task_id)
        keys = {line.slice_key for line in readable if line.trial is None}
        listed.without_run = find_dates_without_run(session, dag_id, task_id, schedule, keys, archived)
    return listed


def archived_keys(session: Session, dag_id: str, task_id: str) -> set[str]:
    """Of slices of which Airflow may have removed the runs."""
    if AssetStateStoreModel is None:
        return set()
    prefix = index_key(dag_id, task_id, "")
    keys = select(AssetStateStoreModel.key).where(
        AssetStateStoreModel.key.startswith(prefix, autoescape=True)
    )
    return {key.removeprefix(prefix) for key in session.scalars(keys)}


def select_runs(dag_id: str, task_id: str) -> Select[Any]:
    """A task's instances with what their runs tell of a slice, the newest run first: `date` of one of the
    schedule or a backfill, and `partition`."""
    ti, run = TaskInstance, DagRun
    partition: Any = getattr(run, "partition_key", None)  # from Airflow 3.3 on
    is_scheduled = run.run_type.in_(SCHEDULED_RUNS)
    date = case((is_scheduled, func.coalesce(run.data_interval_start, run.logical_date)), else_=null())
    columns: tuple[Any, ...] = (
        run.id,
        ti.run_id,
        ti.map_index,
        ti.state,
        ti.start_date,
        ti.end_date,
        date.label("date"),
        (null() if partition is None else partition).label("partition"),
    )
    return (
        select(*columns)
        .join(run, and_(run.dag_id == ti.dag_id, run.run_id == ti.run_id))
        .where(ti.dag_id == dag_id, ti.task_id == task_id)
        .order_by(run.id.desc(), ti.map_index)
    )


def _list_without_slice(
    session: Session, dag_id: str, task_id: str, schedule: Schedule | None
) -> list[RunWithoutSlice]:
    ti, run = TaskInstance, DagRun
    # Not what succeeded without an entry: that was before tasks wrote any, or somebody marked it.
    states = (_QUEUED | _FAILED | _RUNNING | {"skipped"}) - {None}
    is_scheduled = and_(run.run_type.in_(SCHEDULED_RUNS), ti.map_index == -1)
    known = _entries(dag_id, task_id).with_only_columns(XComModel.run_id, XComModel.map_index)
    found = (
        select_runs(dag_id, task_id)
        .where(
            or_(
                ti.state.in_(_FAILED | {"up_for_retry"}),
                and_(is_scheduled, or_(ti.state.is_(None), ti.state.in_(states))),
            ),
            tuple_(ti.run_id, ti.map_index).not_in(known),
        )
        .limit(_RUNS_WITHOUT_SLICE)
        .subquery()
    )
    rows = session.execute(
        select(found, failures.record_text)
        .outerjoin(failures.record, failures.is_of(dag_id, task_id, found))
        .order_by(found.c.id.desc(), found.c.map_index)
    ).all()
    return _without_slice(session, dag_id, task_id, rows, schedule)


def _without_slice(
    session: Session, dag_id: str, task_id: str, rows: Sequence[Any], schedule: Schedule | None
) -> list[RunWithoutSlice]:
    """
    :param rows: of `select_runs`, with the text of their failures' records.
    """
    not_run = [row.run_id for row in rows if row.state == DID_NOT_RUN]
    upstream = failed_before(session, dag_id, task_id, not_run, schedule)
    slices = schedule.slices if schedule is not None and not isinstance(schedule.slices, str) else None
    runs = []
    for row in rows:
        key = row.partition
        if key is None and slices is not None and row.date is not None:
            key = slices.key_of(row.date)
        runs.append(
            RunWithoutSlice(
                run_id=row.run_id,
                map_index=row.map_index,
                state=state_of(row.state, None),
                slice_key=key,
                started=row.start_date,
                ended=row.end_date,
                failure=failures.line_of(failures.read_failure(row.state, row.failure, whole=False)),
                upstream=upstream.get(row.run_id) if row.state == DID_NOT_RUN else None,
            )
        )
    return runs


def find_task_run(session: Session, dag_id: str, task_id: str, run_id: str, map_index: int) -> TaskRun | None:
    """Finds a task instance that wrote no entry, whatever its state; None where Airflow has none."""
    ti = TaskInstance
    known = _entries(dag_id, task_id).with_only_columns(XComModel.run_id, XComModel.map_index)
    runs = select_runs(dag_id, task_id).where(
        ti.run_id == run_id, ti.map_index == map_index, tuple_(ti.run_id, ti.map_index).not_in(known)
    )
    found = runs.order_by(None).limit(1).subquery()
    its = failures.is_of(dag_id, task_id, found)
    row = session.execute(select(found, failures.record_text).outerjoin(failures.record, its)).first()
    if row is None:
        return None
    failure = failures.read_failure(row.state, row.failure, whole=True)
    [line] = _without_slice(session, dag_id, task_id, [row], read_schedule(session, dag_id, task_id))
    tries = list_tries(session, dag_id, task_id, run_id, map_index)
    return TaskRun(line=line, failure=failures.story_of(failure), tries=tries)


def find_run(session: Session, dag_id: str, task_id: str, run_id: str, map_index: int) -> RunOfSlice | None:
    """Finds what a task instance wrote; None when there is nothing that can be read."""
    entry = _entries(dag_id, task_id).where(XComModel.run_id == run_id, XComModel.map_index == map_index)
    row = session.execute(_with_states(dag_id, task_id, entry)).first()
    if row is not None:
        run = _of_row(row, whole=True)
        return None if run is None else with_upstream(session, dag_id, task_id, [run])[0]
    if AssetStateStoreModel is None:
        return None
    kept = _kept(dag_id, task_id).where(
        AssetStateStoreModel.last_updated_by_run_id == run_id,
        AssetStateStoreModel.last_updated_by_map_index == map_index,
    )
    rows = session.execute(_kept_with_states(dag_id, task_id, kept))
    return next((run for row in rows if (run := _of_kept(row, whole=True))), None)


def list_history(session: Session, dag_id: str, task_id: str, slice_key: str) -> list[SliceLine]:
    """Lists the runs of one slice, the newest first, and at the end one that Airflow removed."""
    # JSON has these characters as they are, whichever way a database keeps it.
    part = max(re.findall("[A-Za-z0-9.:-]+", slice_key), key=len, default="")
    may_be_its = cast(XComModel.value, String).contains(part, autoescape=True)
    entries = _newest_first(_entries(dag_id, task_id).where(may_be_its)).limit(_HISTORY_RUNS)
    rows = session.execute(_with_states(dag_id, task_id, entries))
    runs = [_of_row(row) for row in rows if _key_of(row.value) == slice_key]
    if AssetStateStoreModel is not None:
        key = AssetStateStoreModel.key == index_key(dag_id, task_id, slice_key)
        kept = _latest_first(_kept(dag_id, task_id).where(key))
        runs += [_of_kept(row) for row in session.execute(_kept_with_states(dag_id, task_id, kept))]
    return [run.line for run in runs if run is not None]


def list_tries(session: Session, dag_id: str, task_id: str, run_id: str, map_index: int) -> list[Try]:
    """Lists the tries of a task instance, the latest last."""
    tries: dict[int, Try] = {}
    for model in (TaskInstanceHistory, TaskInstance):
        columns = (model.try_number, model.state, model.start_date, model.end_date)
        of_task = select(*columns).where(
            model.dag_id == dag_id,
            model.task_id == task_id,
            model.run_id == run_id,
            model.map_index == map_index,
        )
        for number, state, started, ended in session.execute(of_task):
            if number:
                tries[number] = Try(number=number, state=state, started=started, ended=ended)
    return [tries[number] for number in sorted(tries)]


def list_assets(session: Session, dag_id: str, task_id: str) -> list[AssetLine]:
    """Lists the assets in a task's `outlets`, by their names."""
    of_task = (TaskOutletAssetReference.dag_id == dag_id, TaskOutletAssetReference.task_id == task_id)
    assets = select(AssetModel.id, AssetModel.name).join(TaskOutletAssetReference.asset).where(*of_task)
    rows = session.execute(assets.order_by(AssetModel.name, AssetModel.id))
    return [AssetLine(id=row.id, name=row.name) for row in rows]


def read_xcom(
    session: Session, dag_id: str, task_id: str, run_id: str, map_index: int, key: str
) -> Any | None:
    value = session.scalar(
        select(if_short(XComModel.value)).where(
            XComModel.dag_id == dag_id,
            XComModel.task_id == task_id,
            XComModel.run_id == run_id,
            XComModel.map_index == map_index,
            XComModel.key == key,
        )
    )
    return parsed(value)


def _entries(dag_id: str, task_id: str) -> Select[Any]:
    """What a task's runs wrote, as far as Airflow has them."""
    value = if_short(XComModel.value)
    return select(value, XComModel.run_id, XComModel.map_index, XComModel.timestamp).where(
        XComModel.dag_id == dag_id, XComModel.task_id == task_id, XComModel.key == INDEX_KEY
    )


def if_short(value: Any) -> Any:
    return text_if_short(value, ENTRY_CHARACTERS).label("value")


def _newest_first(entries: Select[Any]) -> Select[Any]:
    return entries.order_by(XComModel.timestamp.desc(), XComModel.run_id.desc(), XComModel.map_index.desc())


def _with_states(dag_id: str, task_id: str, entries: Select[Any]) -> Select[Any]:
    """Joins a page of entries, and no more: a database that misjudges how many there are would take long."""
    entry = entries.subquery()
    ti = TaskInstance
    same = (ti.dag_id == dag_id, ti.task_id == task_id, ti.run_id == entry.c.run_id)
    return (
        select(
            entry.c.value,
            entry.c.run_id,
            entry.c.map_index,
            ti.state,
            ti.try_number,
            ti.start_date,
            ti.end_date,
            failures.record_text,
        )
        .join(ti, and_(*same, ti.map_index == entry.c.map_index))
        .outerjoin(failures.record, failures.is_of(dag_id, task_id, entry))
        .order_by(entry.c.timestamp.desc(), entry.c.run_id.desc(), entry.c.map_index.desc())
    )


def _kept(dag_id: str, task_id: str) -> Select[Any]:
    """Finished entries of runs whose own Airflow has no more. Who wrote an entry, Airflow itself noted."""
    store = AssetStateStoreModel
    # Not `NOT EXISTS`: PostgreSQL compares each with each where it has no statistics yet.
    known = _entries(dag_id, task_id).with_only_columns(XComModel.run_id, XComModel.map_index)
    columns: tuple[Any, ...] = (
        store.key,
        if_short(store.value),
        store.last_updated_by_run_id.label("run_id"),
        store.last_updated_by_map_index.label("map_index"),
        store.updated_at,
    )
    return select(*columns).where(
        store.key.startswith(f"{INDEX_KEY}/"),
        store.last_updated_by_dag_id == dag_id,
        store.last_updated_by_task_id == task_id,
        tuple_(store.last_updated_by_run_id, store.last_updated_by_map_index).not_in(known),
    )


def _latest_first(kept: Select[Any]) -> Select[Any]:
    return kept.order_by(AssetStateStoreModel.updated_at.desc(), AssetStateStoreModel.key)


def _kept_with_states(dag_id: str, task_id: str, kept: Select[Any]) -> Select[Any]:
    """Joins a page of kept entries with those of their runs that are there: only their XComs may be gone."""
    entry = kept.subquery()
    ti = TaskInstance
    same = (ti.dag_id == dag_id, ti.task_id == task_id, ti.run_id == entry.c.run_id)
    columns = (ti.id, ti.state, ti.try_number, ti.start_date, ti.end_date, failures.record_text)
    return (
        select(entry.c.value, entry.c.run_id, entry.c.map_index, entry.c.updated_at, *columns)
        .outerjoin(ti, and_(*same, ti.map_index == entry.c.map_index))
        .outerjoin(failures.record, failures.is_of(dag_id, task_id, entry))
        .order_by(entry.c.updated_at.desc(), entry.c.key)
    )


def _count(session: Session, statement: Select[Any]) -> int:
    return session.scalar(select(func.count()).select_from(statement.order_by(None).subquery())) or 0


def _of_row(row: Any, *, whole: bool = False) -> RunOfSlice | None:
    """
    :param whole: whether its failure has all that the record says, and not what a list tells.
    """
    entry = SliceEntry.parse(parsed(row.value))
    if entry is None:
        return None
    state = None if row.state is None else str(row.state)
    times = {"started": row.start_date, "ended": row.end_date}
    line = _line(entry, state_of(state, entry), run_id=row.run_id, map_index=row.map_index, **times)
    failure = failures.read_failure(state, row.failure, whole=whole)
    told = {"try_number": row.try_number, "failure": failures.line_of(failure)}
    return RunOfSlice(entry, line.model_copy(update=told), failure, state)


def _of_kept(row: Any, *, whole: bool = False) -> RunOfSlice | None:
    if row.id is not None:
        return _of_row(row, whole=whole)
    entry = SliceEntry.parse(parsed(row.value))
    if entry is None:
        return None
    run = {"run_id": row.run_id, "map_index": row.map_index, "ended": row.updated_at}
    line = _line(entry, state_of("success", entry), **run)
    return RunOfSlice(entry, line.model_copy(update={"archived": True}))


def _key_of(value: str | None) -> Any:
    """The slice's key of an entry, of which the rest is not looked at."""
    entry = parsed(value)
    return entry.get("slice_key") if isinstance(entry, dict) else None


def _line(
    entry: SliceEntry,
    state: State,
    *,
    run_id: str,
    map_index: int,
    started: datetime | None = None,
    ended: datetime | None = None,
) -> SliceLine:
    figures = entry.model_dump(include=set(SliceFigures.model_fields))
    run = {"run_id": run_id, "map_index": map_index, "started": started, "ended": ended}
    run["table"] = entry.paths.get("table", "")
    return SliceLine.model_validate({**figures, **run, "state": state})


def state_of(state: str | None, entry: SliceEntry | None) -> State:
    """The state of a slice, or of a run that has none.

    :param state: of the task instance.
    """
    if state in _QUEUED:
        return "queued"
    if state in _FAILED:
        return "failed"
    outcome = entry.outcome if entry is not None else None
    if state in _RUNNING:
        # Airflow 3.2 defers a task that waits for a person.
        return "held" if outcome == "held" and state != "running" else "running"
    if entry is None or outcome in (None, "empty", "held") or (state == "skipped" and outcome != "kept"):
        return "empty"
    return "quarantined" if entry.counts.get("quarantined") else "published"
