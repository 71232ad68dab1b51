"""The timezone of a schedule, with Airflow's own timetables as DAG files and the scheduler have them."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
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
    EventsTimetable,
    MultipleCronTriggerTimetable,
    PartitionedAssetTimetable,
)
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.schedule import makes_partitioned_runs, schedule_timezone

ASSETS = [Asset("a")]
ZONES = ["Europe/Berlin", "America/New_York", "Asia/Taipei"]
#: Around both changes of the clock in 2026, in Berlin and New York.
CHANGES = [dt.datetime(2026, *day, tzinfo=dt.UTC) for day in [(3, 8), (3, 29), (10, 25), (11, 1)]]


class NoZone(BaseTimetable):
    pass


class Wrapper(BaseTimetable):
    def __init__(self, *inner: BaseTimetable) -> None:
        self.inner = inner


class OwnZone(NoZone):
    timezone = "Asia/Taipei"


class LikeIntervals(DeltaDataIntervalTimetable):
    pass


def dag_of(schedule: Any, zone: str = "Australia/Perth") -> DAG:
    return DAG("d", schedule=schedule, start_date=pendulum.datetime(2026, 1, 1, tz=zone))


def with_zone(kind: str, zone: str) -> Any:
    interval = CronDataIntervalTimetable("0 0 * * *", timezone=zone)
    match kind:
        case "interval":
            return interval
        case "trigger":
            return CronTriggerTimetable("0 0 * * *", timezone=zone)
        case "partitions":
            return CronPartitionTimetable("0 0 * * *", timezone=zone)
        case "several crons":
            return MultipleCronTriggerTimetable("0 0 * * *", "0 12 * * *", timezone=zone)
        case "assets or time":
            return AssetOrTimeSchedule(timetable=interval, assets=ASSETS)
        case "assets or several crons":
            return AssetOrTimeSchedule(timetable=with_zone("several crons", zone), assets=ASSETS)
        case "assets or partitions":
            return AssetOrTimeSchedule(timetable=with_zone("partitions", zone), assets=ASSETS)
        case "events":
            return EventsTimetable(
                [pendulum.datetime(2026, 1, 1, tz=zone), pendulum.datetime(2026, 7, 1, tz=zone)]
            )
        case "the user's own around Airflow's":
            return Wrapper(interval, with_zone("trigger", zone))
    raise AssertionError(kind)


KINDS = [
    "interval", "trigger", "partitions", "several crons", "assets or time", "assets or several crons",
    "assets or partitions", "events", "the user's own around Airflow's",
]  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("kind", KINDS)
def test_zone_is_the_schedules_at_any_depth_whatever_the_start_date_has(kind: str, zone: str) -> None:
    found = schedule_timezone(dag_of(with_zone(kind, zone)))
    for change in CHANGES:
        for hours in range(-30, 31):
            instant = change + dt.timedelta(hours=hours)
            assert instant.astimezone(found).isoformat() == instant.astimezone(ZoneInfo(zone)).isoformat()


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("events", "the user's own around Airflow's")])
def test_schedulers_form_of_a_timetable_has_the_same_zone(kind: str) -> None:
    """Which the API server has; events are kept there as instants, and classes of users need a plugin."""
    dag = dag_of(with_zone(kind, "Europe/Berlin"))
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert type(serialized.timetable) is not type(dag.timetable)
    assert str(schedule_timezone(serialized)) == "Europe/Berlin"
    assert makes_partitioned_runs(serialized.timetable) is makes_partitioned_runs(dag.timetable)


@pytest.mark.parametrize("schedule", [
    None, "@once", "@daily", dt.timedelta(days=1), ASSETS, DeltaTriggerTimetable(dt.timedelta(hours=1)),
    PartitionedAssetTimetable(assets=ASSETS[0]), LikeIntervals(dt.timedelta(days=1)),
    AssetOrTimeSchedule(timetable=DeltaDataIntervalTimetable(dt.timedelta(days=1)), assets=ASSETS),
], ids=str)  # fmt: skip
def test_schedule_without_a_zone_has_the_dags(schedule: Any) -> None:
    assert str(schedule_timezone(dag_of(schedule))) == "Australia/Perth"


def test_zone_that_cannot_be_known_is_an_error_and_never_a_guess() -> None:
    assert str(schedule_timezone(dag_of(OwnZone()))) == "Asia/Taipei"
    for unknown in (NoZone(), Wrapper(NoZone()), AssetOrTimeSchedule(timetable=NoZone(), assets=ASSETS)):
        with pytest.raises(RayLLMInputError, match=r"NoZone is unknown.*slice_key"):
            schedule_timezone(dag_of(unknown))
    several = Wrapper(*(with_zone("interval", zone) for zone in ZONES[:2]))
    with pytest.raises(RayLLMInputError, match=r"America/New_York, Europe/Berlin"):
        schedule_timezone(dag_of(several))


def test_runs_are_partitioned_by_a_timetable_at_any_depth() -> None:
    assert makes_partitioned_runs(with_zone("assets or partitions", "UTC"))
    assert makes_partitioned_runs(PartitionedAssetTimetable(assets=ASSETS[0]))
    assert not makes_partitioned_runs(with_zone("assets or time", "UTC"))
    assert not makes_partitioned_runs(None)
