"""Resolves the slice key of a run: which rows this DAG run owns. Pure.

Order: `slice_key`, `partition_key`, the Param `slice`, data interval start, logical date; else an error.
Never reads a whole table because no slice is named, and never uses "now" for a partitioned run, whose context
has no dates.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo

from airflow_provider_raydatallm.exceptions import RayLLMInputError


@dataclass(frozen=True)
class SliceKey:
    """`instant` is the date that `key` was formatted from; None when the key was given as text."""

    key: str
    instant: datetime | None = None


def resolve_slice_key(
    *,
    slice_key: str | None,
    partition_key: str | None,
    param: object,
    data_interval_start: datetime | None,
    logical_date: datetime | None,
    partitioned: bool,
    timezone: tzinfo | None,
    slice_format: str = "%Y-%m-%d",
) -> SliceKey:
    """Returns the slice key of a run.

    :param slice_key: the operator's argument, rendered.
    :param param: the run's Param `slice`; None or "" when there is none.
    :param partitioned: whether the DAG's timetable makes partitioned runs.
    :param timezone: dates are formatted in the schedule's timezone; contexts carry UTC.
    :raises RayLLMInputError: naming the sources that are empty or wrong, and what to set.
    """
    if slice_key is not None:
        return SliceKey(_validate(slice_key, "slice_key"))
    if partition_key is not None:
        return SliceKey(_validate(partition_key, "the run's partition_key"))
    if param not in (None, ""):
        return SliceKey(_validate(param, "the Param 'slice'"))
    if partitioned:
        raise RayLLMInputError(
            "this run of a partitioned DAG has no partition_key, and neither slice_key nor a Param 'slice' "
            "is set: trigger it with a partition key, or set slice_key"
        )
    instant = data_interval_start or logical_date
    if instant is None:
        raise RayLLMInputError(
            "no slice key: slice_key, partition_key, Param 'slice', data interval and logical date are all "
            "empty. Set slice_key, add a Param named 'slice' to the DAG, or trigger the run with a "
            "logical date"
        )
    local = instant.astimezone(timezone) if timezone is not None else instant
    return SliceKey(_validate(local.strftime(slice_format), f"slice_format {slice_format!r}"), instant)


def _validate(value: object, source: str) -> str:
    if not isinstance(value, str):
        raise RayLLMInputError(f"{source} must be text, got {value!r} of type {type(value).__name__}")
    key = value.strip()
    if key in ("", "None", "null", "NaT"):
        raise RayLLMInputError(
            f"{source} rendered to {value!r}, which is not a valid slice key: check the template"
        )
    if any(ord(c) < 32 for c in key):
        raise RayLLMInputError(f"{source} has a control character: {value!r}")
    return key
