"""Parses and converts the operator's arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import pydantic
from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable

from airflow_provider_raydatallm.exceptions import RayLLMInputError

if TYPE_CHECKING:
    from airflow.sdk import DAG

#: Arguments of vLLM that decide which code runs.
_CODE_ARGUMENTS = (
    "trust_remote_code", "worker_cls", "worker_extension_cls", "scheduler_cls", "logits_processors",
    "distributed_executor_backend", "tokenizer_mode", "reasoning_parser_plugin", "tool_parser_plugin",
)  # fmt: skip
_JINJA = re.compile(r"\{\{|\{%|\{#")


def parse_seconds(name: str, value: timedelta | float, *, min_s: float) -> float:
    """:raises ValueError: naming the argument, when it is not a duration or is shorter than `min_s`."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise ValueError(f"{name} is {value!r}: give a timedelta or a number of seconds")
    if not seconds >= min_s:
        raise ValueError(f"{name} is {value!r}: it must be at least {min_s:g} second(s)")
    return seconds


def parse_optional_seconds(name: str, value: timedelta | float | None, *, min_s: float) -> float | None:
    return None if value is None else parse_seconds(name, value, min_s=min_s)


def parse_finish_by(value: timedelta | float | time | str | None) -> timedelta | time | None:
    """Returns a duration or a time of day, which may be given as text such as "07:00".

    :raises ValueError: when it is neither.
    """
    if value is None or isinstance(value, time):
        return value
    if not isinstance(value, str):
        return timedelta(seconds=parse_seconds("finish_by", value, min_s=1))
    try:
        return time.fromisoformat(value)
    except ValueError:
        raise ValueError(
            f"finish_by is {value!r}: give a duration, or a time of day such as '07:00'"
        ) from None


def finish_time(finish_by: timedelta | time, run_start: datetime, timezone: tzinfo) -> datetime:
    """Returns `run_start` plus a duration, or the next such time of day in the schedule's timezone."""
    if isinstance(finish_by, timedelta):
        return run_start + finish_by
    local_start = run_start.astimezone(finish_by.tzinfo or timezone)
    finish = datetime.combine(local_start.date(), finish_by, local_start.tzinfo)
    # In the hour that repeats when clocks go back, local times do not order instants: compare timestamps.
    if finish.timestamp() > run_start.timestamp():
        return finish
    return datetime.combine(local_start.date() + timedelta(days=1), finish_by, local_start.tzinfo)


def schedule_timezone(dag: DAG) -> tzinfo:
    """Returns the timetable's timezone, which may differ from the start date's."""
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
    # Not all of the SDK's timetables carry the scheduler's flags.
    return (
        isinstance(timetable, (CronPartitionTimetable, PartitionedAssetTimetable))
        or getattr(timetable, "partitioned", False)
        or getattr(timetable, "partitioned_at_runtime", False)
    )


def to_url(path: Any) -> Any:
    """Returns a path's address without the Airflow connection that an ObjectStoragePath may carry: the
    cluster does not know connections."""
    if not hasattr(path, "protocol"):
        return path  # text, a template, or an upstream task's output
    return str(path.path) if path.protocol in ("", "file") else f"{path.protocol}://{path.path}"


def check_not_templates(operator: Any, names: Collection[str]) -> None:
    """:raises ValueError: when one of these arguments holds a template, which nobody would render."""
    for name in sorted(names):
        value = getattr(operator, name, None)
        if is_rendered_later(value):
            raise ValueError(
                f"{name} is {value!r}: it cannot be a template. Give its value, or leave {name} out"
            )


def code_arguments(engine_kwargs: Any) -> dict[str, Any]:
    """Returns those of vLLM's arguments that decide which code runs.

    :raises ValueError: when one of them is a template: whoever triggers a run would choose the code.
    """
    given = engine_kwargs if isinstance(engine_kwargs, Mapping) else {}
    code = {name: given[name] for name in _CODE_ARGUMENTS if name in given}
    for name, value in code.items():
        if is_rendered_later(value):
            raise ValueError(f"engine_kwargs.{name} is {value!r}: it decides which code runs: give its value")
    return code


def check_code_arguments(written: Mapping[str, Any], engine_kwargs: Any) -> None:
    """
    :param written: `code_arguments` of the DAG.
    :param engine_kwargs: as rendered.
    :raises RayLLMInputError: when rendering has added or changed one.
    """
    if code_arguments(engine_kwargs) != written:
        raise RayLLMInputError(
            f"engine_kwargs: {', '.join(_CODE_ARGUMENTS)} decide which code runs: write them into the DAG, "
            "not into what a run renders"
        )


def is_rendered_later(value: Any) -> bool:
    if isinstance(value, str):
        return _JINJA.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(is_rendered_later, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_rendered_later, value))
    return hasattr(value, "resolve")  # an upstream task's output
