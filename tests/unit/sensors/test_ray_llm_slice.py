"""The sensor, waiting on a worker and in the triggerer, for real slices."""

from __future__ import annotations

import asyncio
import datetime as dt
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import (
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralTimeout,
    TaskDeferred,
)

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor
from airflow_provider_raydatallm.triggers.slice_published import SlicePublishedTrigger
from tests.support.context import context_of
from tests.support.in_process import job_of, run_in_process
from tests.support.slice_jobs import changed


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    return job_of(slice_key="2026-01-31", input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")


def sensor_of(job: SliceJob, **arguments: Any) -> RayLLMSliceSensor:
    with DAG("waits", schedule=None):
        return RayLLMSliceSensor(task_id="wait", **{"output_path": job.output_path, **arguments})


def context(sensor: Any) -> Any:
    return {**context_of(sensor), "logical_date": dt.datetime(2026, 1, 31, tzinfo=dt.UTC)}


@pytest.mark.parametrize(("arguments", "message"), [
    ({"output_path": None}, "output_path is missing"), ({"deferrable": "no"}, "deferrable is 'no': give"),
    ({"slice_format": "YYYY-MM-DD"}, "slice_format 'YYYY-MM-DD' writes each date as"),
    ({"output_path": "/out/{ds}"}, "output_path '/out/{ds}' has {ds}, and only {slice} is replaced"),
])  # fmt: skip
def test_what_no_slice_could_ever_meet_is_refused_with_the_dag(
    job: SliceJob, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((RayLLMInputError, ValueError), match=message):
        sensor_of(job, **arguments)


def test_worker_looks_for_the_slice_of_its_own_run(job: SliceJob) -> None:
    sensor = sensor_of(job)
    assert not sensor.poke(context(sensor)).is_done
    run_in_process(job)
    assert sensor.execute(context(sensor))["counts"]["succeeded"] == 2
    assert not sensor_of(job, slice_key="2026-01-30").poke(context(sensor)).is_done


def test_triggerer_waits_until_it_is_there(job: SliceJob) -> None:
    sensor = sensor_of(job, deferrable=True, poke_interval=0.01, timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context(sensor))
    assert deferred.value.timeout == dt.timedelta(seconds=60)
    path, arguments = deferred.value.trigger.serialize()
    assert path.rpartition(".")[2] == SlicePublishedTrigger.__name__
    trigger = SlicePublishedTrigger(**arguments)

    async def first_event() -> Any:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await asyncio.to_thread(run_in_process, job)
        return await asyncio.wait_for(waiting, 60)

    event = asyncio.run(first_event())
    assert sensor.execute_complete(context(sensor), event.payload)["counts"]["succeeded"] == 2
    assert sensor.execute(context(sensor))["published_version"] == 1


def test_waiting_in_vain_ends_with_the_reason(job: SliceJob) -> None:
    run_in_process(changed(job, publish__metadata_path=f"{job.output_path}.metadata"))
    sensor = sensor_of(job, metadata_path=f"{job.output_path}.metadata", deferrable=True)
    sensor.output_path = job.output_path.replace("/out", "/other")
    trigger = SlicePublishedTrigger(
        {"slice_path": f"{sensor.output_path}/ds=2026-01-31", "metadata_path": sensor.metadata_path}, 0.01
    )

    async def first_event() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 60)

    event = asyncio.run(first_event())
    with pytest.raises(RayLLMInputError, match="holds the metadata of"):
        sensor.execute_complete(context(sensor), event.payload)


@pytest.mark.parametrize("deferrable", [True, False])
def test_what_no_waiting_helps_is_no_reason_for_another_try(job: SliceJob, deferrable: bool) -> None:
    for path in ("nosuch://a/b", "/"):
        sensor = sensor_of(job, deferrable=deferrable)
        sensor.output_path = path
        with pytest.raises(RayLLMInputError, match=r"nosuch|root of a bucket"):
            sensor.execute(context(sensor))
        sensor.soft_fail = True
        with pytest.raises(AirflowSkipException):
            sensor.execute(context(sensor))


@pytest.mark.parametrize("name", ["output_path", "metadata_path"])
def test_relative_path_is_refused_instead_of_waited_for(job: SliceJob, name: str) -> None:
    with pytest.raises(RayLLMInputError, match=f"wait: {name} 'lake/out' is relative"):
        sensor_of(job, **{"output_path": job.output_path, name: "lake/out"})
    sensor = sensor_of(job, **{"output_path": job.output_path, name: "{{ params.path }}"}, deferrable=True)
    setattr(sensor, name, "lake/out")  # as rendered
    with pytest.raises(RayLLMInputError, match=f"wait: {name} 'lake/out' is relative"):
        sensor.execute(context(sensor))


@pytest.mark.parametrize("wrong", [
    {"max_quarantine": 5}, {"min_rows": -1}, {"max_quarantine": "0.1"}, {"min_rows": "{{ params.rows }}"},
    {"slice_format": "YYYY-MM-DD"}, {"deferrable": "false"}, {"output_path": None},
])  # fmt: skip
def test_wrong_arguments_are_refused_with_the_dag(job: SliceJob, wrong: dict[str, Any]) -> None:
    with pytest.raises((RayLLMInputError, ValueError), match=next(iter(wrong))):
        sensor_of(job, **wrong)


@pytest.mark.parametrize(
    ("soft_fail", "error"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)]
)
@pytest.mark.parametrize("deferrable", [True, False])
def test_timeout_says_what_was_waited_for(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, deferrable: bool, soft_fail: bool, error: type[Exception]
) -> None:
    arguments: dict[str, Any] = {"min_rows": 1000, "max_quarantine": 0.02, "soft_fail": soft_fail}
    sensor = sensor_of(job, poke_interval=0.01, timeout=0.02, deferrable=deferrable, **arguments)
    if deferrable:

        def time_out(*arguments: Any, **of_trigger: Any) -> None:
            raise TaskDeferralTimeout("Trigger timed out.")

        monkeypatch.setattr(BaseOperator, "resume_execution", time_out)
    end = partial(sensor.resume_execution, "execute_complete", None) if deferrable else sensor.execute
    with pytest.raises(error) as raised:
        end(context(sensor))
    assert str(raised.value).endswith(
        f" Waited for {job.output_path}/ds=2026-01-31 to be published, with at least 1,000 rows, with at "
        f"most the share of 0.02 in quarantine (metadata: {job.output_path}.ray_llm/ds=2026-01-31); the log "
        "says what was there"
    )
