"""Which slices a task should have, by the timetable of its DAG: nothing is guessed.

It asks the timetable as the scheduler has it: of a serialized DAG in the API server, or of a DAG file's own
DAG, serialized (`serialized`).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.timetables._cron import CronMixin
from airflow.timetables.base import TimeRestriction
from pendulum import instance

from airflow_provider_raydatallm.contract.spec.source import SLICE_FORMAT
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.schedule import schedule_timezone

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.timetables.base import DagRunInfo


class UnknownSlicesError(Exception):
    """Which slices a task should have, only its runs know. The text says why."""


class ExpectedSlice(NamedTuple):
    """
    :param key: of the slice.
    :param date: of its run: its logical date, or that of its partition.
    :param due: when the schedule makes the run.
    """

    key: str
    date: datetime
    due: datetime


class ExpectedSlices:
    """The slices of one task by its DAG's timetable.

    :param dag: as the scheduler has it.
    :raises UnknownSlicesError: when the timetable and the task's arguments do not tell.
    """

    def __init__(self, dag: SerializedDAG, task_id: str) -> None:
        self._timetable = _remembering(dag.timetable)
        if task_id not in dag.task_dict:
            raise UnknownSlicesError("the DAG has no such task any more")
        task: Any = dag.get_task(task_id)
        self.is_partitioned = bool(getattr(self._timetable, "partitioned", False))
        if task.is_mapped:
            raise UnknownSlicesError("the task is mapped: a run may have any number of slices")
        if getattr(task, "slice_key", None) is not None:
            raise UnknownSlicesError("the task has a slice_key of its own, which only a run can render")
        if self.is_partitioned and not hasattr(self._timetable, "iter_partition_dagrun_infos"):
            raise UnknownSlicesError("this Airflow lists no partitions of a schedule; 3.3 does")
        source = getattr(task, "source", None) or {}
        self._format = source.get("slice_format", SLICE_FORMAT) if isinstance(source, dict) else "{{"
        if "{{" in self._format or "{%" in self._format:
            raise UnknownSlicesError("source.slice_format is a template, which only a run can render")
        try:
            self.timezone: tzinfo = schedule_timezone(dag)
        except RayLLMInputError as e:
            raise UnknownSlicesError(e.failure.sentence) from e

    def between(self, first: datetime, last: datetime) -> Iterator[ExpectedSlice]:
        """Yields the slices of the runs from one date to another, both included, the oldest first.

        :param first: of a schedule by a timedelta, the date of one of its runs: the others are steps from
            there.
        """
        for info in self._infos(first, last):
            if info.partition_key is not None and info.partition_date is not None:
                yield ExpectedSlice(info.partition_key, info.partition_date, info.run_after)
            elif info.data_interval is not None:
                start = info.data_interval.start
                yield ExpectedSlice(self.key_of(start), start, info.run_after)

    def key_of(self, instant: datetime) -> str:
        """The key of the slice of a run's data interval, by its start."""
        return instant.astimezone(self.timezone).strftime(self._format)

    def date_of(self, key: str) -> datetime | None:
        """The date of the run that a key names; None where it names none."""
        try:
            if self.is_partitioned:
                date: datetime | None = self._timetable.resolve_partition_date(key)
                return date
            date = datetime.strptime(key, self._format)
        except Exception:  # of partitions: what the timetable raises for another key
            return None
        return date if date.tzinfo is not None else date.replace(tzinfo=self.timezone)

    @property
    def is_of_dates(self) -> bool:
        """Whether its dates are those of a clock, not steps from a first run."""
        inner = getattr(self._timetable, "timetable", None)  # of assets or a time
        return not (hasattr(self._timetable, "_delta") or hasattr(inner, "_delta"))

    def backfill_date(self, instant: datetime) -> datetime:
        """What Airflow's backfill takes for an instant. Of partitions, it takes the clock of its dates for
        that of the schedule's timezone."""
        return instant.astimezone(self.timezone).replace(tzinfo=UTC) if self.is_partitioned else instant

    def instant_of(self, backfill_date: datetime) -> datetime:
        """The instant that a date of Airflow's backfill stands for."""
        if not self.is_partitioned:
            return backfill_date
        return backfill_date.astimezone(UTC).replace(tzinfo=self.timezone)

    def _infos(self, first: datetime, last: datetime) -> Iterator[DagRunInfo]:
        if self.is_partitioned:
            earliest, latest = self.backfill_date(first), self.backfill_date(last)
            yield from self._timetable.iter_partition_dagrun_infos(earliest=earliest, latest=latest)
            return
        # Airflow's own dates, in UTC: equal clocks of one timezone may be two instants.
        earliest, latest = (instance(date.astimezone(UTC)) for date in (first, last))
        restriction = TimeRestriction(earliest=earliest, latest=latest, catchup=True)
        info = None
        # Airflow's own `iter_dagrun_infos_between` ends early, and silent, when a timetable fails.
        while info := self._next(info, restriction):
            yield info

    def _next(self, before: DagRunInfo | None, restriction: TimeRestriction) -> DagRunInfo | None:
        found: DagRunInfo | None = self._timetable.next_dagrun_info_v2(
            last_dagrun_info=before, restriction=restriction
        )
        if found is not None and before is not None and found.run_after <= before.run_after:
            return None  # of a timetable without an end, such as `@continuous`
        return found


def _remembering(timetable: Any) -> Any:
    """A timetable of cron that remembers the last dates that it computed, and parses its expression once:
    asked for one run after the other, it computes each date up to five times, and parses before each."""
    found = copy(timetable)
    for name in ("_get_next", "_get_prev"):
        if isinstance(found, CronMixin):
            compute = MethodType(_parsing_once(getattr(type(found), name)), found)
            setattr(found, name, lru_cache(maxsize=16)(compute))
    return found


def _parsing_once(compute: Any) -> Any:
    """The same function, which takes expressions that were parsed before."""
    names = getattr(compute, "__globals__", {})
    if "croniter" not in names:
        return compute
    parse = lru_cache(maxsize=1)(names["croniter"])

    def parsed(expression: str, start_time: datetime) -> Any:
        found = copy(parse(expression))
        found.set_current(start_time)
        return found

    return FunctionType(
        compute.__code__,
        {**names, "croniter": parsed},
        compute.__name__,
        compute.__defaults__,
        compute.__closure__,
    )


def serialized(dag: DAG) -> SerializedDAG:
    """A DAG file's DAG as the scheduler would have it."""
    from airflow.serialization.serialized_objects import DagSerialization

    found: SerializedDAG = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    return found
