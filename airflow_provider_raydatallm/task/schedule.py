"""What a DAG's schedule says of its slices: their timezone, and the names of partitions. Pure.

It reads the SDK's timetables, as DAG files have them, and the scheduler's, as a serialized DAG has them: both
give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable

from airflow_provider_raydatallm.exceptions import RayLLMInputError

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.serialization.definitions.dag import SerializedDAG

#: Attributes of timetables, and of partition mappers, in the SDK and in the scheduler.
_ZONES = ("timezone", "_timezone")
_INNER = ("timetable", "_timetable", "timetables", "_timetables")
_INNER_MAPPERS = ("downstream_mapper", "upstream_mapper", "mappers")
_OFFSETS = ("run_offset", "_run_offset")
_ALONE = "Schedule the partitions alone"
_AIRFLOWS_OWN = ("airflow.timetables.", "airflow.sdk.definitions.timetables.")


def schedule_timezone(dag: DAG | SerializedDAG) -> tzinfo:
    """Returns the timezone in which the schedule's dates are slice keys: that of the DAG's timetable, or of
    those inside it. The DAG's own where the schedule has none: an interval, `@once`, assets alone, none.

    :raises RayLLMInputError: when it cannot be known; says why, and what to do.
    """
    zones = {zone_name(zone): zone for zone in _zones(dag.timetable, dag.timezone)}
    if len(zones) > 1:
        raise _unknown(dag.timetable, f"holds several: {', '.join(sorted(zones))}")
    zone = next(iter(zones.values()), dag.timezone)
    try:
        return ZoneInfo(zone) if isinstance(zone, str) else zone
    except (ZoneInfoNotFoundError, ValueError):
        raise _unknown(dag.timetable, f"has {zone!r}, which is no timezone") from None


def zone_name(zone: str | tzinfo) -> str:
    """Returns the name of a timezone as Arrow and browsers know it: of the tz database, or what its clock is
    ahead of UTC (`+05:30`)."""
    if isinstance(zone, (str, ZoneInfo)):
        name = str(zone)
    elif (offset := zone.utcoffset(None)) is not None:
        minutes = offset // timedelta(minutes=1)
        name = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    else:
        name = str(zone)
    return "UTC" if name == "+00:00" else name


def makes_partitioned_runs(timetable: object) -> bool:
    # Not all of the SDK's timetables carry the scheduler's flags.
    return (
        isinstance(timetable, (CronPartitionTimetable, PartitionedAssetTimetable))
        or getattr(timetable, "partitioned", False)
        or getattr(timetable, "partitioned_at_runtime", False)
    )


def is_scheduled_date(dag: DAG, date: datetime) -> bool:
    """Whether the schedule makes a run of this logical date."""
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import TimeRestriction

    restriction = TimeRestriction(earliest=date, latest=date, catchup=True)  # type: ignore[arg-type]
    timetable: Any = coerce_to_core_timetable(dag.timetable)
    info = timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=restriction)
    return info is not None and info.logical_date == date


def partition_format(timetable: object) -> str | None:
    """Returns the `strftime` format in which a timetable writes dates as partition keys; None when it does
    not."""
    return _first(timetable, ("key_format", "_key_format")) if _first(timetable, _ZONES) else None


def other_names(dag: DAG, instant: datetime, key: str, key_format: str) -> tuple[str, ...]:
    """Returns the keys other than `key` that the slice of an instant has in UTC, in the schedule's timezone
    and in the DAG's: Airflow 3.2 formats partition keys in UTC, 3.3 in the schedule's timezone."""
    zones = (UTC, schedule_timezone(dag), dag.timezone)
    names = (instant.astimezone(zone).strftime(key_format) for zone in zones)
    return tuple(dict.fromkeys(name for name in names if name != key))


def _zones(timetable: Any, dag_zone: tzinfo) -> Iterator[str | tzinfo]:
    if (zone := _first(timetable, _ZONES)) is not None:
        yield zone
    elif (inner := _first(timetable, _INNER)) is not None:
        for one in _as_list(inner):
            if _first(one, _OFFSETS):  # Airflow makes runs without a partition of it, at the unmoved dates
                raise _unknown(timetable, f"holds a {type(one).__name__} with a run_offset", advice=_ALONE)
            yield from _zones(one, dag_zone)
    elif (mappers := getattr(timetable, "partition_mapper_config", None)) is not None:
        for mapper in (*mappers.values(), timetable.default_partition_mapper):
            yield from _mapper_zones(mapper)
    elif (dates := getattr(timetable, "event_dates", None)) is not None:
        # Serialized, a date keeps only what its clock is ahead of UTC.
        if other := next((d for d in dates if d.utcoffset() != d.astimezone(dag_zone).utcoffset()), None):
            raise _unknown(
                timetable, f"has the date {other.isoformat()}, and the DAG's timezone is {dag_zone}",
                advice="Write its dates in the timezone of the DAG's start_date",
            )  # fmt: skip
    elif getattr(timetable, "can_be_scheduled", True) and not _is_airflows_own(timetable):
        raise _unknown(timetable, "has none")


def _mapper_zones(mapper: Any) -> Iterator[str | tzinfo]:
    """A mapper's timezone, unless it is UTC, which a mapper has that was given none."""
    zone = _first(mapper, _ZONES)
    if zone is not None and zone_name(zone) != "UTC":
        yield zone
    for inner in _as_list(_first(mapper, _INNER_MAPPERS) or ()):
        yield from _mapper_zones(inner)


def _first(owner: object, names: Iterable[str]) -> Any:
    return next((value for name in names if (value := getattr(owner, name, None)) is not None), None)


def _is_airflows_own(instance: object) -> bool:
    return type(instance).__module__.startswith(_AIRFLOWS_OWN)


def _as_list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _unknown(
    timetable: object, why: str, advice: str = "Give that class an attribute 'timezone'"
) -> RayLLMInputError:
    name = f"{type(timetable).__module__}.{type(timetable).__qualname__}"
    return RayLLMInputError(
        f"the timezone of the DAG's schedule cannot be known, and so which day a run is for: {name} {why}",
        advice=f"{advice}, or give the task a slice_key",
    )
