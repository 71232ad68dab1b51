"""The slice of a run, as tasks of all kinds of schedules have it."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    Param,
)
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.definitions.param import process_params
from airflow.timetables.base import DagRunInfo, Timetable

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor
from airflow_provider_raydatallm.task.run_slice import slice_of_run
from tests.support.context import context_of

MIDNIGHT_IN_TAIPEI = dt.datetime(2026, 1, 30, 16, tzinfo=dt.UTC)


class NoZone(Timetable):
    def next_dagrun_info(self, **_: Any) -> DagRunInfo | None:
        return None


def job_of(
    schedule: Any, run: dict[str, Any], context: dict[str, Any] | None = None, **given: Any
) -> SliceJob:
    dag = DAG("d", schedule=schedule, start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    task = RayLLMBatchOperator(
        dag=dag, task_id="t", input_path="/in", output_path="/out", model_source="m", prompt="{a}", **given
    )
    run = {"run_type": DagRunType.SCHEDULED, "conf": {}, "start_date": None, **run}
    # Airflow's own context has the partition's date, too.
    of_run = {"dag_run": SimpleNamespace(**run), "partition_date": run.get("partition_date")}
    given_context: Any = {**context_of(task), **of_run, **(context or {})}
    task.render_template_fields(given_context)
    return task.slice_job(given_context)[0]


def test_job_and_sensor_have_the_timezone_of_the_schedule_inside_the_schedule() -> None:
    timetable = CronDataIntervalTimetable("0 0 * * *", timezone="Asia/Taipei")
    schedule = AssetOrTimeSchedule(timetable=timetable, assets=[Asset("a")])
    interval = {"data_interval_start": MIDNIGHT_IN_TAIPEI}
    job = job_of(schedule, {}, interval)
    assert (job.slice_key, job.slice_timezone) == ("2026-01-31", "Asia/Taipei")
    assert (job.slice_instant, job.other_slice_keys) == (MIDNIGHT_IN_TAIPEI.isoformat(), ("2026-01-30",))
    sensor = RayLLMSliceSensor(dag=DAG("s", schedule=schedule), task_id="t", output_path="/out")
    context = {**context_of(sensor), **interval}  # type: ignore[arg-type]
    assert sensor._wanted(context).slice_path == "/out/ds=2026-01-31"


@pytest.mark.parametrize("given", [{}, {"slice_key": "k", "source": {"column": "at"}}])
def test_timezone_that_cannot_be_known_fails_where_it_decides_the_rows(given: dict[str, Any]) -> None:
    with pytest.raises(RayLLMInputError, match=r"timezone of the DAG's schedule.*NoZone.*slice_key"):
        job_of(NoZone(), {}, {"data_interval_start": MIDNIGHT_IN_TAIPEI}, **given)


def test_key_of_its_own_needs_no_timezone() -> None:
    assert job_of(NoZone(), {}, slice_key="k", limits={"finish_by": "2h"}).slice_key == "k"


@pytest.mark.parametrize(("key", "other"), [("2026-01-31", "2026-01-30"), ("2026-01-30", "2026-01-31")])
def test_partition_remembers_its_instant_and_what_another_airflow_calls_it(key: str, other: str) -> None:
    schedule = CronPartitionTimetable("0 0 * * *", timezone="Asia/Taipei", key_format="%Y-%m-%d")
    partition = {"partition_key": key, "partition_date": MIDNIGHT_IN_TAIPEI}
    job = job_of(schedule, partition)
    assert (job.slice_key, job.slice_instant) == (key, MIDNIGHT_IN_TAIPEI.isoformat())
    assert job.other_slice_keys == (other,)
    job = job_of(schedule, {**partition, "run_type": DagRunType.MANUAL})
    assert (job.slice_key, job.slice_instant, job.other_slice_keys) == (key, None, ())


def test_template_keeps_the_name_that_a_partition_had_in_utc() -> None:
    schedule = CronPartitionTimetable("0 0 * * *", timezone="Asia/Taipei", key_format="%Y-%m-%d")
    partition = {"partition_key": "2026-01-31", "partition_date": MIDNIGHT_IN_TAIPEI}
    job = job_of(schedule, partition, slice_key="{{ partition_date.strftime('%Y-%m-%d') }}")
    assert (job.slice_key, job.slice_instant, job.other_slice_keys) == ("2026-01-30", None, ())


def test_partition_of_an_airflow_that_does_not_tell_its_date_has_the_schedulers() -> None:
    schedule = CronPartitionTimetable(
        "0 0 * * *", timezone="Asia/Taipei", key_format="%Y-%m-%d", run_offset=-1
    )
    next_midnight = MIDNIGHT_IN_TAIPEI + dt.timedelta(days=1)
    job = job_of(schedule, {"partition_key": "2026-01-30", "run_after": next_midnight})
    assert (job.slice_instant, job.other_slice_keys) == (MIDNIGHT_IN_TAIPEI.isoformat(), ("2026-01-31",))


def test_slice_in_a_runs_conf_is_for_tasks_without_a_key_of_their_own() -> None:
    run = {"run_type": DagRunType.MANUAL, "conf": {"slice": "2026-02-01"}}
    assert job_of(None, run, slice_key="own").slice_key == "own"
    with pytest.raises(RayLLMInputError, match="has no Param 'slice'"):
        job_of(None, run)


def test_slice_that_a_person_asks_for_counts_where_conf_does_not_override_params(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    dag = DAG("d", schedule=None, params={"slice": Param("2026-01-01", type="string", format="date")})
    run = SimpleNamespace(run_type=DagRunType.MANUAL, conf={"slice": "2026-02-01"})
    params = process_params(dag, EmptyOperator(task_id="t"), run.conf, suppress_exception=False)
    assert params["slice"] == "2026-01-01"
    context: Any = {"dag": dag, "dag_run": run, "params": params}
    assert slice_of_run(context, None).key == "2026-02-01"


def test_run_that_assets_started_says_how_to_map_over_their_slices() -> None:
    dag = DAG("d", schedule=[Asset("a")])
    run = SimpleNamespace(run_type=DagRunType.ASSET_TRIGGERED, conf={})
    context: Any = {"dag": dag, "dag_run": run, "params": {}}
    with pytest.raises(RayLLMInputError, match=r"expand\(slice_key=triggering_slices\(\)\)"):
        slice_of_run(context, None)
