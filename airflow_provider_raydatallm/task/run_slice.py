"""The slice of a task's run, from Airflow's context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.spec.slice_job import SLICE_FORMAT
from airflow_provider_raydatallm.task import arguments
from airflow_provider_raydatallm.task.airflow_features import partition_key
from airflow_provider_raydatallm.task.slice_key import SliceKey, chosen_slice, resolve_slice_key

if TYPE_CHECKING:
    from airflow.sdk import Context


def slice_of_run(context: Context, slice_key: str | None, slice_format: str | None = None) -> SliceKey:
    """
    :param slice_key: the task's argument, rendered.
    :raises RayLLMInputError: when the run has none; see `resolve_slice_key`.
    """
    dag, run, partition = context["dag"], context["dag_run"], partition_key(context)
    return resolve_slice_key(
        slice_key=slice_key,
        partition_key=partition,
        # Of a task that has a key of its own, a conf for its neighbours is none of its business.
        param=chosen_slice(run.run_type, run.conf, context["params"], dag.params)
        if slice_key is None and partition is None
        else None,
        data_interval_start=context.get("data_interval_start"),
        logical_date=context.get("logical_date"),
        partitioned=arguments.makes_partitioned_runs(dag.timetable),
        timezone=arguments.schedule_timezone(dag),
        slice_format=slice_format or SLICE_FORMAT,
    )
