"""Which dates of a task have no run, though its schedule, or a backfill, was to make one.

Which dates those are, the DAG's timetable says (`task.expected_slices`). It is asked beside the requests, and
what it said is kept: the years of an hourly schedule take a while.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from airflow.models.backfill import Backfill
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.types import DagRunType
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.page.answers import DatesWithoutRun, DateWithoutRun
from airflow_provider_raydatallm.page.schedules import Schedule
from airflow_provider_raydatallm.task.expected_slices import ExpectedSlice, ExpectedSlices
from airflow_provider_raydatallm.task.slice_key import SCHEDULED_RUNS

#: How long a request waits for a timetable.
_WAIT_SECONDS = 0.1
#: The newest; the others are counted.
_MOST_LISTED = 2_000
#: Of which it is looked what they left out, the newest first.
_MOST_BACKFILLS = 100
#: How many ranges are kept.
_KEPT = 1_000
#: Between slices that are further apart, nothing is missing unless the schedule or a backfill wanted it.
_NEAR = timedelta(days=31)
_INSTANT = timedelta(microseconds=1)


def find_dates_without_run(
    session: Session,
    dag_id: str,
    task_id: str,
    schedule: Schedule | None,
    keys: Collection[str],
    archived: Collection[str],
) -> DatesWithoutRun:
    """
    :param keys: of slices that there are.
    :param archived: the keys of slices of which Airflow has removed the runs.
    """
    if schedule is None:
        return DatesWithoutRun(note="the API server has no such DAG, or cannot read its timetable")
    if isinstance(schedule.slices, str):
        return DatesWithoutRun(note=schedule.slices)
    now = datetime.now(UTC)
    expected: dict[str, ExpectedSlice] = {}
    for first, last in wanted_ranges(session, dag_id, schedule, schedule.slices, keys, now):
        try:
            found = _known_from((dag_id, task_id, schedule.version, first), schedule.slices).until(last)
        except Exception as e:
            return DatesWithoutRun(note=f"the DAG's timetable fails: {e}")
        if found is None:
            return DatesWithoutRun(is_pending=True)
        expected.update((s.key, s) for s in found if s.due <= now)
    if not expected:
        return DatesWithoutRun()
    with_runs = _with_runs(session, dag_id, schedule.slices, min(s.date for s in expected.values()))
    run_of = attrgetter("key" if schedule.slices.is_partitioned else "date")
    lacking = [s for s in expected.values() if run_of(s) not in with_runs]
    lacking.sort(key=lambda s: s.date, reverse=True)
    dates = [
        DateWithoutRun(
            slice_key=s.key, date=schedule.slices.backfill_date(s.date), archived=s.key in archived
        )
        for s in lacking[:_MOST_LISTED]
    ]
    return DatesWithoutRun(dates=dates, total=len(lacking))


def wanted_ranges(
    session: Session,
    dag_id: str,
    schedule: Schedule,
    slices: ExpectedSlices,
    keys: Collection[str],
    now: datetime,
) -> list[tuple[datetime, datetime]]:
    """Returns from when to when slices are wanted: by the schedule, by backfills, and between slices that
    there are.

    :param keys: of slices that there are.
    """
    ranges = list(_ranges(session, dag_id, schedule, slices, now))
    return ranges + [
        (first, last)
        for first, last in _between(slices, keys)
        if not any(begin <= first and last <= end for begin, end in ranges)
    ]


def _ranges(
    session: Session, dag_id: str, schedule: Schedule, slices: ExpectedSlices, now: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Yields from when to when slices are wanted: by the schedule, from its start or, without catch-up, from
    its first run on; and by each backfill."""
    dag = session.get(DagModel, dag_id)
    if dag is None:
        return
    column: Any = DagRun.partition_date if slices.is_partitioned else DagRun.logical_date
    of_schedule = select(func.min(column), func.max(column)).where(
        DagRun.dag_id == dag_id, DagRun.run_type == DagRunType.SCHEDULED
    )
    first, last = session.execute(of_schedule).one()
    if schedule.catchup:
        first = schedule.start or first
    if not dag.is_paused:  # else the scheduler leaves off where it is
        following = dag.next_dagrun_partition_date if slices.is_partitioned else dag.next_dagrun
        last = following - _INSTANT if following is not None else schedule.end or last
    if first is not None and last is not None and first <= last:
        yield first, min(last, now)
    backfills = select(Backfill.from_date, Backfill.to_date).where(Backfill.dag_id == dag_id)
    for begin, end in session.execute(backfills.order_by(Backfill.id.desc()).limit(_MOST_BACKFILLS)):
        begin, end = slices.instant_of(begin), slices.instant_of(end)
        if begin <= (end := min(end, now)):
            yield begin, end


def _between(slices: ExpectedSlices, keys: Collection[str]) -> Iterator[tuple[datetime, datetime]]:
    """Yields from when to when there are slices that lie near each other, whoever made them."""
    if not slices.is_of_dates:
        return
    dates = sorted({date for key in keys if (date := slices.date_of(key)) is not None})
    group: list[datetime] = []
    for date in [*dates, None]:
        if date is None or (group and date - group[-1] > _NEAR):
            if len(group) > 1:
                yield group[0], group[-1]
            group = []
        if date is not None:
            group.append(date)


def _with_runs(session: Session, dag_id: str, slices: ExpectedSlices, since: datetime) -> set[Any]:
    """What runs there are: their partitions, or their dates."""
    if slices.is_partitioned:
        partitions = select(DagRun.partition_key).where(
            DagRun.dag_id == dag_id, DagRun.partition_key.is_not(None)
        )
        return set(session.scalars(partitions))
    # A run that a person makes for a date need not make the slice of that date.
    is_scheduled = DagRun.run_type.in_(SCHEDULED_RUNS)
    dates = select(DagRun.logical_date).where(
        DagRun.dag_id == dag_id, DagRun.logical_date >= since, is_scheduled
    )
    return set(session.scalars(dates))


class _Known:
    """What a timetable says from one date on, as far as it was asked. A thread of its own asks."""

    def __init__(self, slices: ExpectedSlices, first: datetime) -> None:
        self._slices, self._first = slices, first
        self._found: list[ExpectedSlice] = []
        self._until: datetime | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def until(self, last: datetime) -> list[ExpectedSlice] | None:
        """Returns the slices up to a date; None while the timetable is still being asked.

        :raises Exception: what the timetable raised.
        """
        with self._lock:
            if self._until is None or self._until < last:
                if self._thread is None or not self._thread.is_alive():
                    self._error = None
                    self._thread = threading.Thread(
                        target=self._ask, args=(last,), name="ray-llm-slices", daemon=True
                    )
                    self._thread.start()
                self._thread.join(_WAIT_SECONDS)
            if self._error is not None:
                raise self._error
            if self._until is None or self._until < last:
                return None
            return [s for s in self._found if s.date <= last]

    def _ask(self, last: datetime) -> None:
        begin = self._found[-1].date if self._found else self._first
        try:
            found = list(self._slices.between(begin, last))
        except Exception as e:
            self._error = e
            return
        self._found += [s for s in found if not self._found or s.date > self._found[-1].date]
        self._until, self._error = last, None


_known: dict[tuple[str, str, str | None, datetime], _Known] = {}


def _known_from(key: tuple[str, str, str | None, datetime], slices: ExpectedSlices) -> _Known:
    if key not in _known and len(_known) >= _KEPT:
        _known.clear()
    return _known.setdefault(key, _Known(slices, key[-1]))
