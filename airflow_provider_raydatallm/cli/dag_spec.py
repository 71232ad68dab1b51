"""`airflow-ray-llm spec DAG TASK DATE`: the spec of a task's job, for the commands that take one."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_provider_raydatallm.cli.dag_file import read_dag
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.processor.commands.command import Commands, add_command
from airflow_provider_raydatallm.processor.commands.printing import complain

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import DAG
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.timetables.base import DataInterval, Timetable
    from pendulum import DateTime

    from airflow_provider_raydatallm.task.expected_slices import ExpectedSlices


def add_commands(commands: Commands) -> None:
    command = add_command(
        commands, "spec", _spec, "print the spec (JSON) of a task's job, as a run would have it"
    )
    command.add_argument("dag", metavar="DAG", help="its id")
    command.add_argument("task", metavar="TASK", help="its id")
    command.add_argument(
        "date", metavar="DATE", help="of the slice, at which its data interval begins; or a run's id"
    )
    command.add_argument(
        "--map-index", type=int, default=-1, help="of a mapped task whose arguments the DAG file lists"
    )


def scheduled_keys(
    dag_id: str, task_id: str, first: str | None, last: str | None, known: Collection[str]
) -> tuple[list[str], str]:
    """Returns the keys of the slices that are due by a DAG's schedule, the oldest first; and, where no first
    date is given, from which they count and why.

    :param first, last: dates of runs; by default those that the page counts, as far as they can be known.
    :param known: keys of slices that the table has.
    :raises SliceError: when there is no such task, or only its runs know their slices.
    """
    from airflow_provider_raydatallm.task.expected_slices import ExpectedSlices, serialized

    now = dt.datetime.now(dt.UTC)
    with _explained(), _stdout_to_stderr():
        dag = serialized(read_dag(dag_id))
        slices = ExpectedSlices(dag, task_id)
        begin, end = (_date_of(text, slices.timezone) for text in (first, last))
        if begin is not None:
            ranges, why = [(begin, min(end or dag.end_date or now, now))], ""
        else:
            ranges, why = _wanted_ranges(dag, task_id, slices, known, now)
        expected = {
            one.key: one.date
            for since, until in ranges
            for one in slices.between(since, until if end is None else min(until, end))
            if one.due <= now
        }
        keys = sorted(expected, key=lambda key: expected[key])
        return keys, why and f"{f'slices from {keys[0]} on' if keys else 'no slice'}, by {why}"


def _wanted_ranges(
    dag: SerializedDAG, task_id: str, slices: ExpectedSlices, known: Collection[str], now: dt.datetime
) -> tuple[list[tuple[dt.datetime, dt.datetime]], str]:
    """Returns from when to when slices are wanted, and by what. Without Airflow's database, the runs of the
    schedule and the backfills are not known."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_provider_raydatallm.page.dates_without_run import wanted_ranges
    from airflow_provider_raydatallm.page.schedules import schedule_of

    schedule = schedule_of(dag, task_id)
    try:
        with create_session() as session:
            if session.get(DagModel, dag.dag_id) is not None:
                ranges = wanted_ranges(session, dag.dag_id, schedule, slices, known, now)
                return ranges, "the schedule's runs and the backfills in Airflow's database, as on the page"
    except SQLAlchemyError:  # no database, or an empty one
        pass
    if schedule.catchup and schedule.start is not None:
        begin, why = schedule.start, "the start_date of the DAG, which catches up"
    elif dates := [date for key in known if (date := slices.date_of(key)) is not None]:
        begin, why = min(dates), "the first in the table: Airflow's database, if any, does not know the DAG"
    else:
        raise SliceError(
            f"from when on DAG {dag.dag_id!r} makes slices is not known: it does not catch up, Airflow's "
            "database, if any, does not know it, and the table has no slice",
            kind="input",
            advice="Give --from",
        )
    return [(begin, min(schedule.end or now, now))], why


def _date_of(text: str | None, timezone: dt.tzinfo) -> dt.datetime | None:
    if text is None:
        return None
    date = dt.datetime.fromisoformat(text)
    return date if date.tzinfo is not None else date.replace(tzinfo=timezone)


def _spec(args: argparse.Namespace) -> int:
    with _explained(), _stdout_to_stderr():
        text, note = _job_of_task(args)
    if note:
        complain(f"note: {note}")
    print(text)
    return 0


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """:raises SliceError: for whatever the DAG's file and its templates raise."""
    try:
        yield
    except Exception as e:
        failure = getattr(e, "failure", None)
        if not isinstance(failure, Failure):
            failure = Failure("input", str(e) or type(e).__name__)
        raise SliceError.of(failure) from e


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """For what DAG files print, and for Airflow's loggers, some of which hold the stream itself."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _job_of_task(args: argparse.Namespace) -> tuple[str, str | None]:
    """Returns the spec, and what a reader must know of it.

    :raises AirflowException, ValueError: when there is no such task, or it cannot be built.
    """
    # As `airflow tasks render` does it: what a task's context is, Airflow offers by no public function.
    from airflow.cli.commands.task_command import _get_template_context

    from airflow_provider_raydatallm.task.expected_slices import serialized
    from airflow_provider_raydatallm.task.schedule import makes_partitioned_runs
    from airflow_provider_raydatallm.task.slice_key import SCHEDULED_RUNS

    dag = read_dag(args.dag)
    if args.task not in dag.task_dict:
        raise ValueError(f"DAG {args.dag!r} has no task {args.task!r}; it has {', '.join(dag.task_dict)}")
    task = dag.get_task(args.task)
    if task.is_mapped and args.map_index < 0:
        raise ValueError(f"task {args.task!r} of DAG {args.dag!r} is mapped: give --map-index, from 0 on")
    # Its counterpart of the scheduler, also of a DAG that Airflow has not parsed yet.
    scheduled = serialized(dag)
    _check_map_index(scheduled.get_task(args.task), args.map_index)
    ti, is_made_up = _task_instance(scheduled, args.task, args.map_index, run_or_date(dag, args.date))
    run = ti.dag_run
    is_by_date = is_made_up or run.run_id != args.date
    if is_by_date and run.run_type not in SCHEDULED_RUNS:
        make_scheduled(run, scheduled.timetable)
    if is_made_up and makes_partitioned_runs(dag.timetable):
        run.partition_key = args.date
    elif (is_made_up or run.run_id != args.date) and not _is_date(args.date):
        raise ValueError(
            f"{args.date!r} is neither a date nor the id of a run of DAG {args.dag!r}: write a date as "
            "2026-01-31 or 2026-01-31T05"
        )
    return spec_and_note(task, _get_template_context(ti, task))


def _check_map_index(task: Any, map_index: int) -> None:
    """:raises ValueError: for an instance that a mapped task lacks, as far as its DAG's file tells."""
    from airflow.models.expandinput import NotFullyPopulated

    try:
        count = task.get_parse_time_mapped_ti_count() if task.is_mapped else 0
    except NotFullyPopulated:
        return
    if task.is_mapped and map_index >= count:
        raise ValueError(
            f"task {task.task_id!r} has {count} mapped instances: give --map-index below {count}"
        )


def _task_instance(
    dag: SerializedDAG, task_id: str, map_index: int, run_or_date: str
) -> tuple[TaskInstance, bool]:
    """Returns a task instance, and whether there is no such run. Airflow's own `_get_ti` finds no DAG that is
    not in the database yet, and writes what it makes up for a run that is."""
    from airflow.cli.commands.task_command import _get_dag_run
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    task: Any = dag.get_task(task_id)
    with create_session() as session:
        run, is_made_up = _get_dag_run(
            dag=dag, logical_date_or_run_id=run_or_date, create_if_necessary="memory", session=session
        )
        found = None if is_made_up else run.get_task_instance(task_id, map_index=map_index, session=session)
        _ = run.consumed_asset_events  # which templates may read
        session.expunge_all()
    instance = found or TaskInstance(task, run_id=run.run_id, map_index=map_index, dag_version_id=uuid4())
    instance.dag_run = run
    instance.refresh_from_task(task)
    return instance, is_made_up


def make_scheduled(run: DagRun, timetable: Timetable) -> None:
    """Gives a run of a person, or one that is made up, what one of the schedule has at its date: Airflow gave
    it the interval that has passed."""
    from pendulum import instance

    run.conf = {}
    if run.data_interval_start and run.logical_date:
        interval = scheduled_interval(timetable, instance(run.logical_date))
        run.data_interval_start, run.data_interval_end = interval


def scheduled_interval(timetable: Timetable, start: DateTime) -> DataInterval:
    """Returns the interval that begins at a date: the schedule's own, or one as long as the last that has
    passed where the schedule has none there."""
    from airflow.timetables.base import DataInterval, TimeRestriction

    passed = timetable.infer_manual_data_interval(run_after=start)
    always = TimeRestriction(earliest=None, latest=None, catchup=True)
    found = timetable.next_dagrun_info(last_automated_data_interval=passed, restriction=always)
    if found and found.data_interval and found.data_interval.start == start:
        return found.data_interval
    return DataInterval(start=start, end=start + (passed.end - passed.start))


def run_or_date(dag: DAG, text: str) -> str:
    """Returns a date with the schedule's timezone: Airflow takes one without as UTC, at which another day
    may be the schedule's."""
    from airflow.models.dagrun import DagRun

    from airflow_provider_raydatallm.task.schedule import schedule_timezone

    if not _is_date(text):
        return text
    date = dt.datetime.fromisoformat(text)
    is_exact = date.tzinfo is not None or DagRun.find(dag_id=dag.dag_id, run_id=text)
    return text if is_exact else date.replace(tzinfo=schedule_timezone(dag)).isoformat()


def _is_date(text: str) -> bool:
    """Airflow guesses: to it 01.02.2026 is the second of January."""
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def spec_and_note(task: Any, context: Any) -> tuple[str, str | None]:
    """See `_job_of_task`."""
    from airflow.sdk.bases.decorator import DecoratedOperator

    from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

    try:
        task.render_template_fields(context)
        operator = context["task"]  # of a mapped task, its unmapped one
        if not isinstance(operator, RayLLMBatchOperator):
            raise ValueError(f"task {task.task_id!r} of DAG {task.dag_id!r} is no RayLLMBatchOperator")
        job, packages = operator.slice_job(context)
    except ImportError as e:
        if "SUPERVISOR_COMMS" not in str(e):
            raise
        raise ValueError(  # Airflow asks for XComs, and no task runs here
            f"task {task.task_id!r} of DAG {task.dag_id!r} uses an XCom, which only its run can read: its "
            "spec cannot be exported"
        ) from e
    note = None
    if isinstance(operator, DecoratedOperator):
        note = (
            "the task's function travels with its own runs only: `plan`, `run` and `retry-quarantined` "
            "cannot use this spec"
        )
    elif packages:
        note = (
            "the task's own code travels with its runs and is not in the spec: `plan`, `run` and "
            "`retry-quarantined` need it on PYTHONPATH"
        )
    return job.model_dump_json(indent=2, exclude_defaults=True), note
