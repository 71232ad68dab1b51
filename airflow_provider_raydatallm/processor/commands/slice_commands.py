"""`status`, `files` and `plan`: what is published of a slice, and what a run would do. Nothing changes."""

from __future__ import annotations

import argparse
import contextlib
import sys

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.commands.command import Commands, IncompleteError, add_nonce
from airflow_provider_raydatallm.processor.commands.printing import complain, print_json, print_report, say
from airflow_provider_raydatallm.processor.commands.spec_file import add_spec_command, load_spec


def add_slice_commands(commands: Commands) -> None:
    status = add_spec_command(
        commands, "status", _status, "show what is published, and the progress of a run; starts no engine"
    )
    files = add_spec_command(commands, "files", _files, "list the published files of a slice, and no others")
    for command in (status, files):
        add_nonce(command)
    status.add_argument("--name", help="only what this run published, or left as it was")
    plan = add_spec_command(
        commands, "plan", _plan, "show what a run would do, and what is wrong with it; starts nothing"
    )
    plan.add_argument("--gpu-hour-price", type=float, help="price of a GPU hour, to estimate the cost")


def _status(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.published import current_report, report_of_run
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
    from airflow_provider_raydatallm.processor.tables.slice_state import read_run

    job = load_spec(args.spec)
    report = current_report(job) if args.name is None else report_of_run(job, args.name)
    progress = read_run(SliceFolders.open(job.paths))[0] if args.nonce is None else None
    if progress is not None:
        complain(*f"{progress['when']}: {progress_text(progress)}".split("\n"))
    if report is None and args.nonce is None and not args.json:
        say(_why_nothing(job))
    else:
        print_report(report, args)
    return 0


def _why_nothing(job: SliceJob) -> str:
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
    from airflow_provider_raydatallm.processor.store.versions import newest_version

    if (newest := newest_version(SliceFolders.open(job.paths).metadata)) is None:
        return "nothing is published"
    return (
        f"nothing is published for this spec: version {newest.number}, the newest, is of another "
        "configuration or other input, or its files are not shown"
    )


def _files(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.sinks.reading import published_files

    job = load_spec(args.spec)
    try:
        paths = published_files(job.slice_path, metadata_path=job.paths.metadata.rpartition("/")[0])
    except FileNotFoundError as e:
        raise SliceError(str(e), kind="input") from e
    if args.json:
        print_json(paths)
    else:
        say(*paths)
    return 0


def _plan(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor import run_plan
    from airflow_provider_raydatallm.processor.sizing.checks import raise_errors

    with contextlib.redirect_stdout(sys.stderr):  # of the user's code
        plan = run_plan.plan_run(load_spec(args.spec), run_plan.reachable_cluster())
    result = run_plan.as_json(plan, args.gpu_hour_price)
    if not args.json:
        say(*run_plan.as_table(plan, args.gpu_hour_price).split("\n"))
    try:
        raise_errors(plan.findings)
    except SliceError as e:
        raise IncompleteError(e.failure, result) from e
    if args.json:
        print_json(result, indent=2)
    return 0
