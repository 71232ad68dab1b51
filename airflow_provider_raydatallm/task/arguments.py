"""Parses and converts the operator's arguments. Pure."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta, tzinfo
from pathlib import PurePath
from typing import Any, cast

import pydantic

from airflow_provider_raydatallm.contract.durations import to_optional_seconds, to_seconds
from airflow_provider_raydatallm.contract.spec.gate import OF_LABEL, OF_SQL
from airflow_provider_raydatallm.contract.spec.leaves import moved_argument, nearest_argument
from airflow_provider_raydatallm.contract.spec.limits import TaskLimits
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS
from airflow_provider_raydatallm.exceptions import RayLLMInputError

#: Arguments of the operator that decide which code runs, or with whose keys.
CODE_FIELDS = ("preprocess", "postprocess", "code_paths", "runtime_env", "allow_static_credentials")
#: Leaves of the engine that decide which code runs, at any depth. `_CUSTOM_CLASS` beside others makes one of
#: them a class.
_CODE_LEAVES = frozenset({
    "trust_remote_code", "worker_cls", "worker_extension_cls", "scheduler_cls", "logits_processors",
    "distributed_executor_backend", "tokenizer_mode", "reasoning_parser_plugin", "tool_parser_plugin",
    "io_processor_plugin", "compilation_config", "kv_transfer_config", "ec_transfer_config", "runtime_env",
    "model_class_overrides", "ec_manager_config", "encoder_cache_manager_cls",
})  # fmt: skip
_CUSTOM_CLASS = "custom_class"
#: Endings of names that Airflow reads as files, in all arguments that are templates. Of no other kind: a
#: choice that ends in README.md is no file.
TEMPLATE_FILES = (".jinja",)
_JINJA = re.compile(r"\{\{|\{%|\{#")
_FILE_NAME = re.compile(r"\s*[^\s{}]+\.(txt|md|j2|jinja2?)\s*", re.IGNORECASE)


def parse_seconds(name: str, value: Any, *, min_s: float) -> float:
    """:raises ValueError: naming the argument, when it is not a duration or is shorter than `min_s`."""
    try:
        seconds = to_seconds(value)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None
    if not seconds >= min_s:
        raise ValueError(f"{name} is {value!r}: it must be at least {min_s:g} second(s)")
    return seconds


_LIMITS = TaskLimits()


@dataclass(frozen=True)
class WaitLimits:
    """The leaves of `limits` that concern the task's waiting, not the job.

    :param reconnect_s: seconds for which the cluster may be away.
    :param orphan_s: seconds after which a job ends when no task waits for it; None: never.
    :param finish_by: when the slice should be finished.
    """

    reconnect_s: float = _LIMITS.reconnect
    orphan_s: float | None = _LIMITS.orphan
    finish_by: timedelta | time | None = None

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, Any]) -> WaitLimits:
        """:raises ValueError: naming the leaf that cannot work."""
        limits = cls()
        if (reconnect := leaves.get("reconnect")) is not None:
            limits = replace(limits, reconnect_s=parse_seconds("limits.reconnect", reconnect, min_s=1))
        if "orphan" in leaves:
            limits = replace(limits, orphan_s=_parse_orphan(leaves["orphan"]))
        return replace(limits, finish_by=parse_finish_by(leaves.get("finish_by")))


def _parse_orphan(value: Any) -> float | None:
    try:
        seconds = to_optional_seconds(value)
    except ValueError as e:
        raise ValueError(f"limits.orphan: {e}") from None
    return None if seconds is None else parse_seconds("limits.orphan", value, min_s=60)


def parse_finish_by(value: timedelta | float | time | str | None) -> timedelta | time | None:
    """Returns a duration, or a time of day, which may be given as text such as "07:00".

    :raises ValueError: when it is neither.
    """
    if value is None or isinstance(value, time):
        return value
    if isinstance(value, str) and ":" in value:
        try:
            return time.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(
                f"limits.finish_by is {value!r}: give a duration, or a time of day such as '07:00'"
            ) from None
    return timedelta(seconds=parse_seconds("limits.finish_by", value, min_s=1))


def finish_time(finish_by: timedelta | time, run_start: datetime, timezone: Callable[[], tzinfo]) -> datetime:
    """Returns `run_start` plus a duration, or the next such time of day.

    :param timezone: the schedule's, asked only for a time of day that has none.
    """
    if isinstance(finish_by, timedelta):
        return run_start + finish_by
    local_start = run_start.astimezone(finish_by.tzinfo or timezone())
    finish = datetime.combine(local_start.date(), finish_by, local_start.tzinfo)
    # In the hour that repeats when clocks go back, local times do not order instants: compare timestamps.
    if finish.timestamp() > run_start.timestamp():
        return finish
    return datetime.combine(local_start.date() + timedelta(days=1), finish_by, local_start.tzinfo)


def to_json_schema(schema: Any) -> dict[str, Any] | None:
    if hasattr(schema, "resolve"):
        raise ValueError(f"output_schema is {schema!r}: it cannot come from an upstream task. Give its value")
    if isinstance(schema, type):
        if not issubclass(schema, pydantic.BaseModel):
            raise ValueError(
                f"output_schema is {schema!r}: give a pydantic model class or a JSON schema (dict)"
            )
        return schema.model_json_schema()
    return cast("dict[str, Any] | None", schema)


def to_url(path: Any) -> Any:
    """Returns a path's address without the Airflow connection that an ObjectStoragePath may carry: the
    cluster does not know connections."""
    if isinstance(path, PurePath):
        return str(path)
    if not hasattr(path, "protocol"):
        return path  # text, a template, or an upstream task's output
    return str(path.path) if path.protocol in ("", "file") else f"{path.protocol}://{path.path}"


def check_not_moved(others: Collection[str]) -> None:
    """
    :param others: arguments that are neither the operator's own nor Airflow's.
    :raises TypeError: when one of them is a leaf of a group, or is nearly an argument.
    """
    for name in others:
        if (group := moved_argument(name)) is not None:
            raise TypeError(f"{name} stands in a group: write {group}")
        if (nearest := nearest_argument(name)) is not None:
            raise TypeError(f"there is no {name}: did you mean {nearest}?")


def check_values(log: object, ray_conn_id: object) -> None:
    """:raises ValueError: for one of these arguments, which no spec holds, that cannot work."""
    if log not in ("brief", "full"):
        raise ValueError(f"log is {log!r}: give 'brief' or 'full'")
    if not ray_conn_id:
        raise ValueError(f"ray_conn_id is {ray_conn_id!r}: give the id of a connection of type 'ray'")


def check_bools(operator: Any, *names: str) -> None:
    """:raises ValueError: when one of these is another value: the text "false" would count as true."""
    for name in names:
        if not isinstance(value := getattr(operator, name), bool):
            raise ValueError(f"{name} is {value!r}: give True or False")


def check_list(name: str, value: Any) -> None:
    """:raises ValueError: for a text, whose characters would be taken one by one."""
    if isinstance(value, str):
        raise ValueError(f"{name} is {value!r}: give a list")


def check_not_templates(arguments: Mapping[str, Any], names: Collection[str]) -> None:
    """:raises ValueError: when one of these arguments holds a template, which nobody would render."""
    for name in sorted(names):
        value = arguments.get(name)
        if is_rendered_later(value):
            raise ValueError(
                f"{name} is {value!r}: it cannot be a template. Give its value, or leave {name} out"
            )


def check_groups(groups: Mapping[str, Any]) -> None:
    """:raises ValueError: when a group that has no form of text is one that would be rendered."""
    for name, value in groups.items():
        takes_text = GROUPS[name].short_forms or GROUPS[name].short_leaf
        if isinstance(value, str) and is_rendered_later(value) and not takes_text:
            raise ValueError(f"{name} is {value!r}: give a dict, whose values may be templates")


def code_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those arguments of an operator, and leaves of its engine, that decide which code runs.

    :raises ValueError: when one of them is a template: whoever triggers a run would choose the code.
    """
    code = {name: arguments[name] for name in CODE_FIELDS if arguments.get(name)}
    code |= _code_leaves("engine", arguments.get("engine"))
    if checks := written_checks(arguments.get("quality")):
        code["quality.gates"] = checks
    for name, value in code.items():
        if is_rendered_later(value):
            raise ValueError(f"{name} is {value!r}: it decides which code runs: give its value")
    return code


def written_checks(quality: Any) -> list[str]:
    """Returns the functions that gates ask, where they are written as they are."""
    gates = quality.get("gates") if isinstance(quality, Mapping) else None
    listed = gates if isinstance(gates, list | tuple) else ()  # else an upstream task or a template says
    figures = [gate.get("of") for gate in listed if isinstance(gate, Mapping)]
    return [
        of for of in figures if isinstance(of, str) and ":" in of and not of.startswith((OF_LABEL, OF_SQL))
    ]


def check_checks(written: Mapping[str, Any], checks: Collection[str]) -> None:
    """
    :param written: `code_arguments` of the DAG.
    :param checks: functions that the gates of a job ask.
    :raises ValueError: when the DAG does not say one of them: whoever triggers a run would choose the code.
    """
    if unknown := [check for check in checks if check not in written.get("quality.gates", ())]:
        raise ValueError(
            f"quality.gates asks {unknown[0]!r}: what decides which code runs is written into the DAG, not "
            "into what a run renders"
        )


def _code_leaves(path: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        is_class = path in ("engine", "engine.kind") and ":" in value
        return {path: value} if is_class or _code_leaves(path, _from_json(value)) else {}
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {}
    if _CUSTOM_CLASS in value.values():
        return {path: value}
    leaves: dict[str, Any] = {}
    for name, leaf in value.items():
        leaf_path = f"{path}.{name}"
        leaves |= {leaf_path: leaf} if name in _CODE_LEAVES else _code_leaves(leaf_path, leaf)
    return leaves


def _from_json(text: str) -> Any:
    """What a text says as JSON, which vLLM reads where it takes a dict; None for any other text."""
    if text.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return None


def check_code_arguments(written: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """
    :param written: `code_arguments` of the DAG.
    :param arguments: as rendered, and mapped.
    :raises RayLLMInputError: when rendering or mapping has added or changed one.
    """
    actual = code_arguments(arguments)
    if actual != written:
        names = sorted(n for n in actual.keys() | written.keys() if actual.get(n) != written.get(n))
        raise RayLLMInputError(
            f"{', '.join(names)}: what decides which code runs is written into the DAG, not into what a run "
            "renders, a mapped argument or an engine profile"
        )


def check_is_text(name: str, value: Any) -> None:
    """:raises ValueError: for a prompt that names a file which nobody reads: all rows would be asked that."""
    if isinstance(value, str) and _FILE_NAME.fullmatch(value):
        raise ValueError(
            f"{name} is {value!r}, which would be asked as it is: only a file whose name ends in "
            f"{TEMPLATE_FILES[0]!r}, and is written into the DAG, is read"
        )


def is_template_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(TEMPLATE_FILES)


def is_rendered_later(value: Any) -> bool:
    if isinstance(value, str):
        return _JINJA.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(is_rendered_later, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_rendered_later, value))
    return value is not None and hasattr(value, "resolve")  # an upstream task's output
