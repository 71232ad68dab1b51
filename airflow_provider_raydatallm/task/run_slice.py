"""The slice of a task's run, from Airflow's context, and what of it the person who made the run may not
expect."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.spec.source import SLICE_FORMAT
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.airflow_features import is_test_run, partition_date, partition_key
from airflow_provider_raydatallm.task.schedule import (
    is_scheduled_date,
    makes_partitioned_runs,
    other_names,
    partition_format,
    schedule_timezone,
)
from airflow_provider_raydatallm.task.slice_key import (
    RUNS_WITH_DATES,
    SliceKey,
    chosen_slice,
    resolve_slice_key,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob


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


def warnings_of_run(context: Context, job: SliceJob) -> list[str]:
    """Returns what a run that somebody made for a logical date does otherwise than that date says."""
    dag, run, date = context["dag"], context["dag_run"], context.get("logical_date")
    if date is None or run.run_type in RUNS_WITH_DATES or makes_partitioned_runs(dag.timetable):
        return []
    try:
        timezone = schedule_timezone(dag)
    except RayLLMInputError:  # of no interest to a task with a slice_key of its own
        return []
    named, begin = (
        instant and instant.astimezone(timezone).strftime(job.source.slice_format)
        for instant in (date, context.get("data_interval_start"))
    )
    warnings = []
    # Without a date of theirs, Airflow takes the moment of the trigger, which has microseconds.
    is_of_person = date.microsecond == 0 and "slice" not in (run.conf or {})
    is_other = is_of_person and named != job.slice_key == begin
    if is_other:
        trigger = "trigger the DAG"
        if "slice" not in dag.params:
            trigger = "give the DAG params={'slice': Param('', type='string')}, and trigger it"
        warnings.append(
            f"The slice is {begin}, where the run's data interval begins, and not {named}, its logical date. "
            f"To process slice {named}, {trigger} with --conf '{json.dumps({'slice': named})}'"
        )
    is_test = is_test_run(context)
    if (is_other or is_test) and is_scheduled_date(dag, date):
        made = ", which `airflow dags test` made," if is_test else ""
        warnings.append(
            f"Airflow keeps this run{made} as that of {named}: its schedule and its backfills make no other, "
            f"and so leave out slice {named}. Delete the run before they should process it"
        )
    return warnings
