"""The slice of a task's run, from Airflow's context."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.spec.source import SLICE_FORMAT
from airflow_provider_raydatallm.task.airflow_features import partition_date, partition_key
from airflow_provider_raydatallm.task.schedule import (
    makes_partitioned_runs,
    other_names,
    partition_format,
    schedule_timezone,
)
from airflow_provider_raydatallm.task.slice_key import SliceKey, chosen_slice, resolve_slice_key

if TYPE_CHECKING:
    from airflow.sdk import Context


def slice_of_run(context: Context, slice_key: str | None, slice_format: str | None = None) -> SliceKey:
    """
    :param slice_key: the task's argument, rendered.
    :raises RayLLMInputError: when the run has none; see `resolve_slice_key`.
    """
    dag, run = context["dag"], context["dag_run"]
    return resolve_slice_key(
        slice_key=slice_key,
        partition_key=partition_key(context),
        partition_date=partition_date(context),
        param=lambda: chosen_slice(run.run_type, run.conf, dag.params),
        data_interval_start=context.get("data_interval_start"),
        logical_date=context.get("logical_date"),
        partitioned=makes_partitioned_runs(dag.timetable),
        timezone=partial(schedule_timezone, dag),
        slice_format=slice_format or SLICE_FORMAT,
    )


def other_names_of_run(context: Context, key: SliceKey, slice_format: str | None = None) -> tuple[str, ...]:
    """Returns the keys that the run's slice has where its date is formatted in another timezone."""
    dag = context["dag"]
    is_partition = partition_key(context) is not None
    key_format = partition_format(dag.timetable) if is_partition else slice_format or SLICE_FORMAT
    if key.instant is None or key_format is None:
        return ()
    return other_names(dag, key.instant, key.key, key_format)
