"""Runs of slices as they stand in Airflow's database, written by the thousand and without a task."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow.models.asset import AssetModel
from airflow.models.asset_state_store import AssetStateStoreModel
from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import Session

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY
from airflow_provider_raydatallm.task.slice_entry import INDEX_KEY, index_key
from tests.support.arguments import written

BEGIN = dt.datetime(2023, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Run:
    """A task's run of a slice.

    :param entry: what the task wrote, beside the slice's key; None for a run that is still without figures.
    :param at: when it was written, by which runs are ordered.
    :param date: of a run of the schedule; None for one that a person started.
    :param has_slice: whether the task has come to its slice, and wrote anything.
    :param failure: the record of the try that failed, as Airflow keeps it.
    """

    slice_key: str
    state: str | None = "success"
    run_id: str = ""
    map_index: int = -1
    entry: dict[str, Any] | None = field(default_factory=lambda: figures())
    at: dt.datetime = BEGIN
    paths: dict[str, str] = field(default_factory=dict)
    date: dt.datetime | None = None
    has_slice: bool = True
    failure: Any = None

    def value(self) -> dict[str, Any]:
        return {"format": 1, "slice_key": self.slice_key, "paths": self.paths, **(self.entry or {})}

    def xcoms(self) -> Iterator[tuple[str, Any]]:
        if self.has_slice:
            yield INDEX_KEY, self.value()
        if self.failure is not None:
            yield FAILURE_KEY, self.failure

    def lasted(self) -> dt.timedelta:
        return dt.timedelta(seconds=(self.entry or {}).get("seconds", {}).get("total", 120))


def figures(planned: int = 600, quarantined: int = 0, version: int = 1, **more: Any) -> dict[str, Any]:
    """What a finished task writes."""
    return {
        "outcome": "published", "published_version": version, "fingerprint": "f" * 16, "model": "tiny",
        "counts": {
            "planned": planned, "succeeded": planned - quarantined, "quarantined": quarantined, "resumed": 0,
            "truncated": 3, "invalid_output": quarantined, "deduplicated": 0,
        },
        "tokens": {"input": planned * 24, "output": planned * 3, "cached": planned * 8},
        "seconds": {"queued": 4.0, "engine_start": 21.5, "inference": planned / 40, "publish": 0.6,
                    "total": 30.0 + planned / 40},
        "rows_per_s": 40.0, "tokens_per_s": 1080.0, "advice": [], **more,
    }  # fmt: skip


def write_runs(session: Session, dag_id: str, task_id: str, runs: Iterable[Run]) -> None:
    """Writes a DAG, if need be, and runs of one of its tasks, one DAG run for each run's id."""
    runs = [run if run.run_id else Run(**{**vars(run), "run_id": f"manual__{run.slice_key}"}) for run in runs]
    version = write_dag(session, dag_id)
    first = (session.scalar(select(func.max(DagRun.id))) or 0) + 1
    known = dict(session.execute(select(DagRun.run_id, DagRun.id).where(DagRun.dag_id == dag_id)).all())
    new = {run.run_id: run.date for run in runs if run.run_id not in known}
    numbers = {**known, **{run_id: first + i for i, run_id in enumerate(new)}}
    if new:
        session.execute(insert(DagRun), [
            {"id": numbers[run_id], "dag_id": dag_id, "run_id": run_id,
             "run_type": "manual" if date is None else "scheduled", "logical_date": date,
             "state": "success", "run_after": BEGIN, "start_date": BEGIN, "queued_at": BEGIN,
             "clear_number": 0, "span_status": "not_started"}
            for run_id, date in new.items()
        ])  # fmt: skip
    session.execute(insert(TaskInstance.__table__), [
        {"id": uuid.uuid4(), "dag_id": dag_id, "task_id": task_id, "run_id": run.run_id,
         "map_index": run.map_index, "state": run.state, "try_number": 1, "max_tries": 0,
         "pool": "default_pool", "pool_slots": 1, "queue": "default", "priority_weight": 1,
         "start_date": run.at, "end_date": run.at + run.lasted(), "span_status": "not_started",
         "dag_version_id": version, "updated_at": run.at}
        for run in runs
    ])  # fmt: skip
    xcoms = [
        {"dag_run_id": numbers[run.run_id], "task_id": task_id, "map_index": run.map_index, "key": key,
         "dag_id": dag_id, "run_id": run.run_id, "value": value, "timestamp": run.at}
        for run in runs for key, value in run.xcoms()
    ]  # fmt: skip
    if xcoms:
        session.execute(insert(XComModel.__table__), xcoms)
    session.commit()


def write_schedule(
    session: Session,
    dag_id: str,
    task_id: str,
    schedule: Any = None,
    *,
    following: dt.datetime | None = None,
    **options: Any,
) -> None:
    """Writes a DAG of one task as Airflow has it once it parsed its file.

    :param schedule: by default that of each day in UTC.
    :param following: the date of the run that the scheduler makes next.
    :param options: of the DAG.
    """
    if schedule is None:
        schedule = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
    arguments = written(model_source="m", prompt="{a}", input_path="/in", output_path="/out")
    with DAG(dag_id, schedule=schedule, **{"start_date": BEGIN, "catchup": False, **options}) as dag:
        RayLLMBatchOperator(task_id=task_id, **arguments)
    session.execute(delete(SerializedDagModel).where(SerializedDagModel.dag_id == dag_id))
    version = write_dag(session, dag_id)
    row = SerializedDagModel(LazyDeserializedDAG(data=DagSerialization.to_dict(dag)))
    row.dag_version_id = version
    session.add(row)
    known = session.get(DagModel, dag_id)
    assert known is not None
    known.next_dagrun, known.is_paused = following, False
    session.commit()


def keep_runs(session: Session, dag_id: str, task_id: str, runs: Iterable[Run], asset: str) -> None:
    """Writes what a task with an asset leaves in the asset's state store."""
    model = AssetModel(name=asset, uri=asset, group="asset", extra={})
    session.add(model)
    session.flush()
    session.execute(insert(AssetStateStoreModel.__table__), [
        {"asset_id": model.id, "key": index_key(dag_id, task_id, run.slice_key),
         "value": json.dumps(run.value()), "updated_at": run.at, "last_updated_by_kind": "task",
         "last_updated_by_dag_id": dag_id, "last_updated_by_task_id": task_id,
         "last_updated_by_run_id": run.run_id, "last_updated_by_map_index": run.map_index}
        for run in runs
    ])  # fmt: skip
    session.commit()


def write_years(session: Session, dag_id: str, tasks: int, days: int) -> None:
    """Writes a run of each day of each task, and as many in an asset's store that Airflow has cleaned."""
    day = dt.timedelta(days=1)
    for n in range(tasks):
        task_id = f"task_{n:02}"
        runs = [
            Run((BEGIN + i * day).date().isoformat(), entry=figures(600, i % 9), at=BEGIN + i * day)
            for i in range(days)
        ]
        write_runs(session, dag_id, task_id, runs)
        kept = [Run(f"old-{i}", run_id=f"gone-{i}", at=BEGIN - i * day) for i in range(days)]
        keep_runs(session, dag_id, task_id, kept, f"asset_{n}")
        if n == 0 and session.get_bind().dialect.name == "postgresql":
            session.execute(text("ANALYZE"))  # as its autovacuum does: else keys are checked by scans
            session.commit()


def clean_runs(session: Session, dag_id: str) -> None:
    """Removes a DAG's runs, as `airflow db clean` does."""
    for model in (XComModel, TaskInstance, DagRun):
        session.execute(delete(model).where(model.dag_id == dag_id))
    session.commit()


def write_dag(session: Session, dag_id: str) -> uuid.UUID:
    """Writes a DAG, if need be, and returns its version."""
    if session.get(DagBundleModel, "dags-folder") is None:
        session.execute(insert(DagBundleModel.__table__), [{"name": "dags-folder", "active": True}])
    if session.get(DagModel, dag_id) is None:
        session.execute(insert(DagModel.__table__), [
            {"dag_id": dag_id, "is_paused": False, "is_stale": False, "bundle_name": "dags-folder",
             "timetable_type": "airflow.timetables.simple.NullTimetable", "max_active_tasks": 1,
             "max_consecutive_failed_dag_runs": 0, "has_task_concurrency_limits": False,
             "partition_mapper_info": {}}
        ])  # fmt: skip
    version = session.scalar(select(DagVersion.id).where(DagVersion.dag_id == dag_id))
    if version is None:
        version = uuid.uuid4()
        session.execute(insert(DagVersion.__table__), [
            {"id": version, "version_number": 1, "dag_id": dag_id, "bundle_name": "dags-folder",
             "created_at": BEGIN, "last_updated": BEGIN}
        ])  # fmt: skip
    return version
