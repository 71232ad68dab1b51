"""What the operator makes of its arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, cast, overload
from zoneinfo import ZoneInfo

import pydantic
from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable

if TYPE_CHECKING:
    from airflow.sdk import DAG

_JINJA = re.compile(r"\{\{|\{%|\{#")


@overload
def parse_seconds(name: str, value: timedelta | float, *, least: float) -> float: ...
@overload
def parse_seconds(name: str, value: timedelta | float | None, *, least: float) -> float | None: ...
def parse_seconds(name: str, value: timedelta | float | None, *, least: float) -> float | None:
    """A duration in seconds.

    :raises ValueError: naming the argument, when it is no duration or shorter than `least`.
    """
    if value is None:
        return None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise ValueError(f"{name} is {value!r}: give a timedelta or a number of seconds")
    if not seconds >= least:
        raise ValueError(f"{name} is {value!r}: at least {least:g} second(s)")
    return seconds


def parse_finish_by(value: timedelta | float | time | str | None) -> timedelta | time | None:
    """A duration, or a time of day, which may be text such as "07:00".

    :raises ValueError: when it is neither.
    """
    if value is None or isinstance(value, time):
        return value
    if not isinstance(value, str):
        return timedelta(seconds=parse_seconds("finish_by", value, least=1))
    try:
        return time.fromisoformat(value)
    except ValueError:
        raise ValueError(
            f"finish_by is {value!r}: give a duration, or a time of day such as '07:00'"
        ) from None


def finish_time(by: timedelta | time, began: datetime, timezone: tzinfo) -> datetime:
    """The instant: so long after a run began, or the next such time of day in its schedule's timezone."""
    if isinstance(by, timedelta):
        return began + by
    here = began.astimezone(by.tzinfo or timezone)
    at = datetime.combine(here.date(), by, here.tzinfo)
    # In the hour that clocks go through twice, times of day do not tell before from after.
    return (
        at
        if at.timestamp() > began.timestamp()
        else datetime.combine(here.date() + timedelta(days=1), by, here.tzinfo)
    )


def timezone_of(dag: DAG) -> tzinfo:
    """The timezone that the schedule is in: the timetable's, which may differ from that of the start date."""
    zone = getattr(dag.timetable, "timezone", None) or dag.timezone
    return ZoneInfo(zone) if isinstance(zone, str) else zone


def to_json_schema(schema: Any) -> dict[str, Any] | None:
    if isinstance(schema, type):
        if not issubclass(schema, pydantic.BaseModel):
            raise ValueError(
                f"output_schema is {schema!r}: give a pydantic model class or a JSON schema (dict)"
            )
        return schema.model_json_schema()
    return cast("dict[str, Any] | None", schema)


def makes_partitioned_runs(timetable: object) -> bool:
    # The SDK's timetables do not all carry the scheduler's flags.
    return (
        isinstance(timetable, (CronPartitionTimetable, PartitionedAssetTimetable))
        or getattr(timetable, "partitioned", False)
        or getattr(timetable, "partitioned_at_runtime", False)
    )


def to_url(path: Any) -> Any:
    """A path's address without the Airflow connection that an ObjectStoragePath may carry: the cluster does
    not know it."""
    if not hasattr(path, "protocol"):
        return path  # text, or what a template or an upstream task makes of it later
    return str(path.path) if path.protocol in ("", "file") else f"{path.protocol}://{path.path}"


def is_rendered_later(value: Any) -> bool:
    if isinstance(value, str):
        return _JINJA.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(is_rendered_later, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_rendered_later, value))
    return hasattr(value, "resolve")  # an upstream task's output
