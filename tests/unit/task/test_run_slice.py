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
    CronTriggerTimetable,
    Param,
)
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.definitions.param import process_params
from airflow.timetables.base import DagRunInfo, Timetable

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor
from airflow_provider_raydatallm.task.run_slice import slice_of_run, warnings_of_run
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


MARCH_2 = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
NOVEMBER_28 = dt.datetime(2026, 11, 28, 20, 2, 33, 608676, dt.UTC)
DAY = dt.timedelta(days=1)
BY_DAY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")


def warnings_for(
    schedule: Any,
    begin: dt.datetime,
    logical_date: dt.datetime = MARCH_2,
    *,
    run_type: DagRunType = DagRunType.MANUAL,
    conf: dict[str, Any] | None = None,
    user: str = "jane",
    params: dict[str, Any] | None = None,
    **given: Any,
) -> list[str]:
    dag = DAG("d", schedule=schedule, start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), params=params)
    task = RayLLMBatchOperator(
        dag=dag, task_id="t", input_path="/in", output_path="/out", model_source="m", prompt="{a}", **given
    )
    run = SimpleNamespace(run_type=run_type, conf=conf, start_date=None, triggering_user_name=user)
    dates = {"logical_date": logical_date, "data_interval_start": begin}
    context: Any = {**context_of(task), "dag_run": run, **dates}
    task.render_template_fields(context)
    return warnings_of_run(context, task.slice_job(context)[0])


# What Airflow 3.3 gives a run: `dags trigger` counts the interval from now, its API and `dags test` from the
# logical date.
@pytest.mark.parametrize(("schedule", "begin", "slice_key"), [
    (BY_DAY, dt.datetime(2026, 11, 27, tzinfo=dt.UTC), "2026-11-27"),
    (BY_DAY, MARCH_2 - DAY, "2026-03-01"),
    (CronTriggerTimetable("0 0 * * *", timezone="UTC"), NOVEMBER_28, "2026-11-28"),
    ("@daily", NOVEMBER_28, "2026-11-28"),
    (DAY, NOVEMBER_28, "2026-11-28"),
])  # fmt: skip
def test_run_whose_slice_is_not_that_of_its_logical_date_says_so_and_what_to_do(
    schedule: Any, begin: dt.datetime, slice_key: str
) -> None:
    other, left_out = warnings_for(schedule, begin)
    assert other == (
        f"The slice is {slice_key}, where the run's data interval begins, and not 2026-03-02, its logical "
        "date. To process slice 2026-03-02, give the DAG params={'slice': Param('', type='string')}, and "
        'trigger it with --conf \'{"slice": "2026-03-02"}\''
    )
    assert "leave out slice 2026-03-02" in left_out
    params = {"slice": Param("", type="string")}
    assert "2026-03-02, trigger the DAG with --conf" in warnings_for(schedule, begin, params=params)[0]


@pytest.mark.parametrize("given", [
    {"begin": MARCH_2},
    {"begin": MARCH_2 - DAY, "logical_date": MARCH_2.replace(hour=9, microsecond=7)},
    {"run_type": DagRunType.SCHEDULED},
    {"run_type": DagRunType.BACKFILL},
    {"conf": {"slice": "2026-03-01"}, "params": {"slice": Param("", type="string")}},
    {"slice_key": "{{ logical_date.strftime('%Y-%m-%d') }}"},
    {"slice_key": "k", "schedule": NoZone()},
    {"schedule": CronPartitionTimetable("0 0 * * *", timezone="UTC"), "slice_key": "2026-03-01"},
])  # fmt: skip
def test_run_of_the_slice_that_its_maker_named_and_runs_of_the_schedule_warn_of_nothing(
    given: dict[str, Any],
) -> None:
    assert warnings_for(**{"schedule": BY_DAY, "begin": MARCH_2 - DAY, **given}) == []


@pytest.mark.parametrize(("schedule", "date", "count"), [
    ("@daily", MARCH_2, 1),
    ("@daily", NOVEMBER_28, 0),  # no date of the schedule's: it leaves out nothing
    (None, MARCH_2, 0),
])  # fmt: skip
def test_run_of_dags_test_tells_of_the_day_that_a_backfill_leaves_out(
    schedule: Any, date: dt.datetime, count: int
) -> None:
    warnings = warnings_for(schedule, date, date, user="dag_test", conf={})
    assert len(warnings) == count
    for warning in warnings:
        assert "`airflow dags test` made" in warning
        assert "leave out slice 2026-03-02. Delete the run" in warning
