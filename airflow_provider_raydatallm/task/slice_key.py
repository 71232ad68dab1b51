"""Resolves the slice key of a run: which rows this DAG run owns. Pure.

Order: `slice_key`, `partition_key`, the Param `slice` that a person's run sets, data interval start, logical
date; else an error. Never reads a whole table because no slice is named, never uses "now" for a partitioned
run, whose context has no dates, and never lets a Param's default, or a backfill's configuration, take the
place of a run's own day.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import ParamValidationError

from airflow_provider_raydatallm.contract.slice_paths import encode_slice_key
from airflow_provider_raydatallm.exceptions import RayLLMInputError

if TYPE_CHECKING:
    from airflow.sdk.definitions.param import ParamsDict

#: Run types whose dates are the schedule's.
SCHEDULED_RUNS = ("scheduled", "backfill")
#: Runs that nobody asked for one by one: their slice is that of their interval or partition.
RUNS_WITH_DATES = (*SCHEDULED_RUNS, "asset_triggered")
_LONGEST_KEY = 200
#: Percent-encoded, in a folder's name, which has 255 bytes at most.
_LONGEST_NAME = 240
#: Control characters, those that nobody sees or that show a text in another order than it has, halves of
#: characters, and ends of lines.
_UNWANTED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


@dataclass(frozen=True)
class SliceKey:
    """
    :param instant: the date that `key` was formatted from; None when the key was given as text.
    """

    key: str
    instant: datetime | None = None


def chosen_slice(run_type: str, conf: Mapping[str, Any] | None, declared: ParamsDict) -> object:
    """Returns the slice that this run's configuration names, if a person or a task made the run.

    It is not the context's Param, which keeps its default where Airflow's `dag_run_conf_overrides_params` is
    off.

    :param run_type: Airflow's `DagRunType`, which equals its name but whose `str()` is another text.
    :param declared: the DAG's Params.
    :raises RayLLMInputError: when the DAG declares no Param `slice`, as the slice would be another one; or
        the Param does not allow it.
    """
    if run_type in RUNS_WITH_DATES or conf is None or "slice" not in conf:
        return None
    if "slice" not in declared:
        raise RayLLMInputError(
            f"the run's conf sets slice={conf['slice']!r}, but the DAG has no Param 'slice'",
            advice="Add params={'slice': Param('', type='string')} to it, or trigger the run without",
        )
    try:
        return declared.get_param("slice").resolve(conf["slice"])
    except ParamValidationError as e:
        problem = str(e).partition("\n")[0]
        raise RayLLMInputError(f"the run's conf sets slice={conf['slice']!r}: {problem}") from None


def resolve_slice_key(
    *,
    slice_key: str | None,
    partition_key: str | None,
    partition_date: datetime | None,
    param: Callable[[], object],
    data_interval_start: datetime | None,
    logical_date: datetime | None,
    partitioned: bool,
    timezone: Callable[[], tzinfo],
    slice_format: str = "%Y-%m-%d",
) -> SliceKey:
    """Returns the slice key of a run.

    :param slice_key: the operator's argument, rendered.
    :param partition_date: which Airflow wrote as the partition's key; None where it did not.
    :param param: `chosen_slice`, asked only when it counts; None or "" when there is none.
    :param partitioned: whether the DAG's timetable makes partitioned runs.
    :param timezone: the schedule's, asked only when dates are formatted in it; contexts carry UTC.
    :raises RayLLMInputError: naming the sources that are empty or wrong, and what to set.
    """
    if slice_key is not None:
        return SliceKey(_validate(slice_key, "slice_key"))
    if partition_key is not None:
        return SliceKey(_validate(partition_key, "the run's partition_key"), partition_date)
    if (chosen := param()) not in (None, ""):
        return SliceKey(_validate(chosen, "the Param 'slice'"))
    if partitioned:
        raise RayLLMInputError(
            "this run of a partitioned DAG has no partition_key, and neither slice_key nor a Param 'slice' "
            "is set",
            advice="Trigger it with a partition key, or set slice_key",
        )
    instant = data_interval_start or logical_date
    if instant is None:
        raise RayLLMInputError(
            "no slice key: this run has no partition key, data interval or logical date, and neither "
            "slice_key nor the Param 'slice' names one",
            advice=(
                "Trigger the DAG with a logical date, or with a Param 'slice' (params={'slice': Param('', "
                "type='string')} gives its form a field for it): 'Materialize' of an asset asks for no date",
                "In a DAG that assets start, map the task over the slices of their events: "
                ".expand(slice_key=triggering_slices())",
            ),
        )
    key = instant.astimezone(timezone()).strftime(slice_format)
    return SliceKey(_validate(key, f"source.slice_format {slice_format!r}"), instant)


def _validate(value: object, source: str) -> str:
    if not isinstance(value, str):
        raise RayLLMInputError(f"{source} must be text, got {value!r} of type {type(value).__name__}")
    key = value.strip()
    if key in ("", "None", "null", "NaT"):
        raise RayLLMInputError(
            f"{source} rendered to {value!r}, which is not a valid slice key", advice="Check the template"
        )
    if bad := next((c for c in key if unicodedata.category(c) in _UNWANTED), None):
        raise RayLLMInputError(f"{source} has a control or invisible character ({bad!a}): {value!a}")
    if key[0] in "_.":
        raise RayLLMInputError(f"{source} is {value!r}: readers skip folders that begin with {key[0]!r}")
    if len(key) > _LONGEST_KEY or len(encode_slice_key(key)) > _LONGEST_NAME:
        raise RayLLMInputError(
            f"{source} has {len(key)} characters, where {_LONGEST_KEY} are the most, and fewer where its "
            f"folder's name percent-encodes them: it begins with {key[:60]!r}"
        )
    return key
