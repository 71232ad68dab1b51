"""`airflow-ray-llm spec DAG TASK DATE`: the spec of a task's job, for the commands that take one."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

from airflow_provider_raydatallm.processor.__main__ import add_command


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _spec(args: argparse.Namespace) -> int:
    try:
        with _stdout_to_stderr():
            text = _job_of_task(args)
    except Exception as e:  # whatever the DAG's file and its templates raise
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(text)
    return 0


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


def _job_of_task(args: argparse.Namespace) -> str:
    """:raises AirflowException, ValueError: when there is no such task, or it cannot be built."""
    # As `airflow tasks render` does it: what a task's context is, Airflow offers by no public function.
    from airflow.cli.commands.task_command import _get_template_context, _get_ti
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.cli import get_bagged_dag

    from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
    from airflow_provider_raydatallm.task.arguments import makes_partitioned_runs

    dag = get_bagged_dag(None, args.dag)
    if args.task not in dag.task_dict:
        raise ValueError(f"DAG {args.dag!r} has no task {args.task!r}; it has {', '.join(dag.task_dict)}")
    task = dag.get_task(args.task)
    # Its counterpart of the scheduler, also of a DAG that Airflow has not parsed yet.
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    ti, is_made_up = _get_ti(
        serialized.get_task(args.task),
        args.map_index,
        logical_date_or_run_id=args.date,
        create_if_necessary="memory",
    )
    run = ti.dag_run
    if is_made_up and run.data_interval_start is not None:  # a person's run has the interval that has passed
        length = run.data_interval_end - run.data_interval_start
        run.data_interval_start, run.data_interval_end = run.logical_date, run.logical_date + length
    if is_made_up and makes_partitioned_runs(dag.timetable):
        run.partition_key = args.date
    elif is_made_up and run.logical_date is None:
        raise ValueError(f"{args.date!r} is neither a date nor the id of a run of DAG {args.dag!r}")
    context = _get_template_context(ti, task)
    try:
        task.render_template_fields(context)
    except ImportError as e:  # Airflow asks for XComs, and no task runs here
        raise ValueError(f"only a run knows the arguments of mapped task {args.task!r}") from e
    operator = context["task"]  # of a mapped task, its unmapped one
    if not isinstance(operator, RayLLMBatchOperator):
        raise ValueError(f"task {args.task!r} of DAG {args.dag!r} is no RayLLMBatchOperator")
    return operator.slice_job(context)[0].model_dump_json(indent=2, exclude_defaults=True)
