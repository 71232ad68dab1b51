from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pendulum
import pyarrow as pa
import pytest
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
    PartitionedAssetTimetable,
    StartOfDayMapper,
)
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables import interval as core_interval
from airflow.timetables import trigger as core_trigger
from airflow.timetables.base import DagRunInfo, Timetable
from airflow.timetables.events import EventsTimetable  # the SDK's cannot be read from the database

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.input.slice_filter import SliceFilter
from airflow_provider_raydatallm.task.arguments import finish_time
from airflow_provider_raydatallm.task.schedule import other_names, schedule_timezone, zone_name
from airflow_provider_raydatallm.task.slice_key import resolve_slice_key

TABLE = Asset("table")
#: Far from both, so that no zone is right by accident.
OF_DAG = "Pacific/Kiritimati"
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
ZONES = [BERLIN, NEW_YORK, LORD_HOWE]
#: Days of both changes of the clock, and those around them.
DAYS = {
    BERLIN: ["2026-03-28", "2026-03-29", "2026-03-30", "2026-10-24", "2026-10-25", "2026-10-26"],
    NEW_YORK: ["2026-03-07", "2026-03-08", "2026-03-09", "2026-10-31", "2026-11-01", "2026-11-02"],
    LORD_HOWE: ["2026-04-04", "2026-04-05", "2026-04-06", "2026-10-03", "2026-10-04", "2026-10-05"],
}

#: Schedules with a timezone, made in one.
WITH_ZONE: dict[str, Callable[[str], Any]] = {
    "interval": lambda zone: CronDataIntervalTimetable("0 0 * * *", timezone=zone),
    "cron": lambda zone: CronTriggerTimetable("0 0 * * *", timezone=zone),
    "several crons": lambda zone: MultipleCronTriggerTimetable("0 0 * * *", "0 6 * * *", timezone=zone),
    "partitions": lambda zone: CronPartitionTimetable("0 0 * * *", timezone=zone),
    "assets or interval": lambda zone: or_assets(CronDataIntervalTimetable("0 0 * * *", timezone=zone)),
    "assets or several": lambda zone: or_assets(MultipleCronTriggerTimetable("0 0 * * *", timezone=zone)),
    "assets or partitions": lambda zone: or_assets(CronPartitionTimetable("0 0 * * *", timezone=zone)),
    "assets twice": lambda zone: or_assets(or_assets(CronTriggerTimetable("0 0 * * *", timezone=zone))),
    "mapped partitions": lambda zone: PartitionedAssetTimetable(
        assets=TABLE, partition_mapper_config={TABLE: StartOfDayMapper(timezone=zone)}
    ),
    "the scheduler's interval": lambda zone: core_interval.CronDataIntervalTimetable("0 0 * * *", zone),
    "the scheduler's crons": lambda zone: core_trigger.MultipleCronTriggerTimetable(
        "0 0 * * *", timezone=zone
    ),
}
WITHOUT_ZONE: dict[str, Callable[[str], Any]] = {
    "none": lambda _: None,
    "once": lambda _: "@once",
    "cron text": lambda _: "0 0 * * *",
    "timedelta": lambda _: dt.timedelta(days=1),
    "delta interval": lambda _: DeltaDataIntervalTimetable(dt.timedelta(days=1)),
    "delta trigger": lambda _: DeltaTriggerTimetable(dt.timedelta(days=1)),
    "assets": lambda _: [TABLE],
    "assets or delta": lambda _: or_assets(DeltaDataIntervalTimetable(dt.timedelta(days=1))),
    "verbatim partitions": lambda _: PartitionedAssetTimetable(assets=TABLE),
    # UTC is what a mapper has that was given no timezone.
    "mapped partitions": lambda _: PartitionedAssetTimetable(
        assets=TABLE, default_partition_mapper=StartOfDayMapper()
    ),
    "events": lambda zone: EventsTimetable([midnight("2026-03-29", zone), midnight("2026-10-26", zone)]),
    "the scheduler's interval": lambda _: core_interval.DeltaDataIntervalTimetable(dt.timedelta(days=1)),
}


def or_assets(timetable: Any) -> AssetOrTimeSchedule:
    return AssetOrTimeSchedule(timetable=timetable, assets=[TABLE])


def midnight(day: str, zone: str) -> pendulum.DateTime:
    return pendulum.parse(day, tz=zone)  # type: ignore[return-value]


def dag_of(schedule: Any, zone: str = OF_DAG) -> DAG:
    return DAG("d", schedule=schedule, start_date=pendulum.datetime(2026, 1, 1, tz=zone))


def both_sides(dag: DAG) -> list[Any]:
    """The DAG as its file has it, and as the API server reads it from the database."""
    return [dag, DagSerialization.from_dict(DagSerialization.to_dict(dag))]


def key_of(dag: Any, instant: dt.datetime) -> str:
    return resolve_slice_key(
        slice_key=None, partition_key=None, partition_date=None, param=lambda: None,
        data_interval_start=instant, logical_date=None, partitioned=False,
        timezone=lambda: schedule_timezone(dag),
    ).key  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("kind", WITH_ZONE)
def test_key_is_the_day_of_the_schedules_own_timezone(kind: str, zone: str) -> None:
    for dag in both_sides(dag_of(WITH_ZONE[kind](zone))):
        assert str(schedule_timezone(dag)) == zone
        for day in DAYS[zone]:
            begin = midnight(day, zone).in_timezone("UTC")
            end = midnight(day, zone).add(days=1).in_timezone("UTC")
            assert key_of(dag, begin) == key_of(dag, end.subtract(seconds=1)) == day
            assert key_of(dag, begin.subtract(seconds=1)) < day < key_of(dag, end)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("kind", WITHOUT_ZONE)
def test_schedule_without_a_timezone_has_the_dags(kind: str, zone: str) -> None:
    for dag in both_sides(dag_of(WITHOUT_ZONE[kind](zone), zone)):
        assert str(schedule_timezone(dag)) == zone
        for day in DAYS[zone]:
            assert key_of(dag, midnight(day, zone).in_timezone("UTC")) == day


def test_moved_partitions_inside_another_schedule_are_no_partitions() -> None:
    moved = CronPartitionTimetable("0 0 * * *", timezone=BERLIN, run_offset=-1)
    for dag in both_sides(dag_of(moved)):
        assert str(schedule_timezone(dag)) == BERLIN
    for dag in both_sides(dag_of(or_assets(moved))):
        with pytest.raises(RayLLMInputError, match="CronPartitionTimetable with a run_offset"):
            schedule_timezone(dag)


@pytest.mark.parametrize(
    ("zone", "name"),
    [(pendulum.FixedTimezone(19800), "+05:30"), (pendulum.parse("2026-01-01T00:00:00+00:00").tzinfo, "UTC"),  # type: ignore[union-attr]
     (pendulum.FixedTimezone(-12600), "-03:30"), (pendulum.timezone(BERLIN), BERLIN)],
)  # fmt: skip
def test_timezone_has_a_name_that_arrow_knows(zone: Any, name: str) -> None:
    instant = dt.datetime(2026, 1, 31, 20, tzinfo=dt.UTC)
    schedules = ["@daily", PartitionedAssetTimetable(
        assets=TABLE, default_partition_mapper=StartOfDayMapper(timezone=zone)
    )]  # fmt: skip
    for schedule in schedules:
        dag = DAG("d", schedule=schedule, start_date=instant.astimezone(zone))
        for side in both_sides(dag):
            assert zone_name(schedule_timezone(side)) == name
            assert key_of(side, instant) == instant.astimezone(zone).strftime("%Y-%m-%d")
    column = pa.chunked_array([pa.array([instant], pa.timestamp("us", tz="UTC"))])
    day = instant.astimezone(zone).strftime("%Y-%m-%d")
    assert SliceFilter("at", day, "%Y-%m-%d", name).mask(column).to_pylist() == [True]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("kind", WITH_ZONE)
def test_time_of_day_is_the_schedules(kind: str, zone: str) -> None:
    dag = dag_of(WITH_ZONE[kind](zone))
    for day in DAYS[zone]:
        start = midnight(day, zone).in_timezone("UTC")
        finish = finish_time(dt.time(7), start, lambda: schedule_timezone(dag))
        assert pendulum.instance(finish).in_timezone(zone).format("YYYY-MM-DD HH:mm") == f"{day} 07:00"


class Workdays(Timetable):
    """A user's own, without a timezone."""

    def next_dagrun_info(self, **_: Any) -> DagRunInfo | None:
        return None


class WorkdaysInBerlin(Workdays):
    timezone = BERLIN


class OnDemand(Workdays):
    can_be_scheduled = False


class Union(Workdays):
    def __init__(self, *timetables: Any) -> None:
        self._timetables = list(timetables)


class Shifted(core_interval.DeltaDataIntervalTimetable):
    """A user's own, of a class that has no timezone: what it adds may have one."""


def cron(zone: str) -> Any:
    return coerce_to_core_timetable(CronTriggerTimetable("0 0 * * *", timezone=zone))


@pytest.mark.parametrize(("timetable", "zone"), [
    (WorkdaysInBerlin(), BERLIN), (OnDemand(), OF_DAG), (Union(cron(BERLIN), cron(BERLIN)), BERLIN),
    (Union(cron(BERLIN), core_interval.DeltaDataIntervalTimetable(dt.timedelta(1))), BERLIN),
    (or_assets(WorkdaysInBerlin()), BERLIN),
])  # fmt: skip
def test_own_timetable_says_its_timezone(timetable: Any, zone: str) -> None:
    assert str(schedule_timezone(dag_of(timetable))) == zone


class Nowhere(Workdays):
    timezone = "Mars/Olympus"


@pytest.mark.parametrize(("timetable", "reason"), [
    (Workdays(), r"test_schedule\.Workdays has none"), (or_assets(Workdays()), "Workdays has none"),
    (Shifted(dt.timedelta(days=1)), "Shifted has none"), (Nowhere(), "Mars/Olympus"),
    (Union(cron(BERLIN), cron(NEW_YORK)), "several: America/New_York, Europe/Berlin"),
    (Union(cron(BERLIN), Workdays()), "Workdays has none"),
    (EventsTimetable([midnight("2026-03-29", BERLIN)]), r"the date 2026-03-29T00:00:00\+01:00"),
    (or_assets(EventsTimetable([midnight("2026-03-30", BERLIN)])), r"the date 2026-03-30T00:00:00\+02:00"),
])  # fmt: skip
def test_timezone_that_cannot_be_known_is_an_error(timetable: Any, reason: str) -> None:
    with pytest.raises(RayLLMInputError, match=rf"timezone of the DAG's schedule .*{reason}"):
        schedule_timezone(dag_of(timetable))


def test_error_is_the_same_on_the_api_server() -> None:
    dag = dag_of(EventsTimetable([midnight("2026-03-29", BERLIN)]))
    for side in both_sides(dag):
        with pytest.raises(RayLLMInputError, match="EventsTimetable has the date"):
            schedule_timezone(side)


def test_other_timezones_names_are_those_that_differ() -> None:
    taipei = dag_of(CronPartitionTimetable("0 0 * * *", timezone="Asia/Taipei"), "UTC")
    instant = dt.datetime(2026, 1, 30, 16, tzinfo=dt.UTC)
    assert other_names(taipei, instant, "2026-01-31", "%Y-%m-%d") == ("2026-01-30",)
    assert other_names(taipei, instant, "2026-01-30", "%Y-%m-%d") == ("2026-01-31",)
    assert other_names(taipei, instant, "2026-01", "%Y-%m") == ()
