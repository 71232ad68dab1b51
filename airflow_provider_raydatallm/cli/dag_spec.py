"""`airflow-ray-llm spec DAG TASK DATE`: the spec of a task's job, for the commands that take one."""

from __future__ import annotations

import argparse
import contextlib
import sys

from airflow_provider_raydatallm.processor.__main__ import add_command


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(
        commands, "spec", _spec, "print the spec (JSON) of a task's job, as a run would have it"
    )
    command.add_argument("dag", metavar="DAG", help="its id")
    command.add_argument("task", metavar="TASK", help="its id")
    command.add_argument("date", metavar="DATE", help="the run's logical date, or a run's id")
    command.add_argument("--map-index", type=int, default=-1, help="of a mapped task")


def _spec(args: argparse.Namespace) -> int:
    from airflow.sdk.exceptions import AirflowException

    try:
        with contextlib.redirect_stdout(sys.stderr):  # what DAG files print
            text = _job_of_task(args)
    except (AirflowException, RuntimeError, ValueError, LookupError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(text)
    return 0


def _job_of_task(args: argparse.Namespace) -> str:
    """:raises AirflowException, ValueError: when there is no such task, or it cannot be built."""
    # As `airflow tasks render` does it: what a task's context is, Airflow offers by no public function.
    from airflow.cli.commands.task_command import _get_template_context, _get_ti
    from airflow.utils.cli import get_bagged_dag, get_db_dag

    from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

    dag = get_bagged_dag(None, args.dag)
    task = dag.get_task(args.task)
    ti, _ = _get_ti(
        get_db_dag(None, args.dag).get_task(args.task),
        args.map_index,
        logical_date_or_run_id=args.date,
        create_if_necessary="memory",
    )
    context = _get_template_context(ti, task)
    task.render_template_fields(context)
    operator = context["task"]  # of a mapped task, its unmapped one
    if not isinstance(operator, RayLLMBatchOperator):
        raise ValueError(f"task {args.task!r} of DAG {args.dag!r} is no RayLLMBatchOperator")
    return operator.slice_job(context)[0].model_dump_json(indent=2, exclude_defaults=True)
