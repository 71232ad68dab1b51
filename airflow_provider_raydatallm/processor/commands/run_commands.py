"""`run` and `retry-quarantined`: answer a slice's rows, and publish or stage them."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.processor.commands.command import Commands, add_nonce, days
from airflow_provider_raydatallm.processor.commands.printing import print_json, print_report, say
from airflow_provider_raydatallm.processor.commands.spec_file import add_spec_command, spec_of

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.metrics.spans import RunSpans


def add_run_commands(commands: Commands) -> None:
    run = add_spec_command(commands, "run", _run, "answer and publish a slice")
    retry = add_spec_command(
        commands, "retry-quarantined", _retry, "answer the rows in the slice's quarantine again"
    )
    for command in (run, retry):
        add_nonce(command)
        command.add_argument("--name", help="the run's name in messages of runs that wait for it")
        command.add_argument("--finish-by", type=float, metavar="EPOCH", help="warn when it will end later")
        command.add_argument("--heartbeat-key", help="stop when this key of Ray's store is no longer renewed")
        command.add_argument("--orphan-timeout", type=float, default=1800, help="for this many seconds")
        command.add_argument("--commit-alone", action="store_true", help="publish also without")
        command.add_argument(
            "--waited", type=float, default=0, metavar="SECONDS", help="of limits.queue that have passed"
        )
    run.add_argument(
        "--stage-only", action="store_true", help="stop when the version is staged: `commit` publishes it"
    )
    run.add_argument(
        "--keep-days", type=days, default=30, help="of --stage-only: `gc` keeps it so long (default: 30)"
    )


def _run(args: argparse.Namespace, **changes: Any) -> int:
    from airflow_provider_raydatallm.processor.metrics.spans import run_spans

    if getattr(args, "stage_only", False):
        return _stage(args)
    with run_spans() as spans:
        report = _run_slice(args, spans, changes)
        spans.succeed(report)
        print_report(report, args)
    return 0


def _run_slice(args: argparse.Namespace, spans: RunSpans, changes: dict[str, Any]) -> Report:
    from airflow_provider_raydatallm.processor.inference.orphan_watch import OrphanWatch
    from airflow_provider_raydatallm.processor.metrics.startup_time import process_seconds
    from airflow_provider_raydatallm.processor.ray_runtime.driver import StopRequested, stop_on_sigterm
    from airflow_provider_raydatallm.processor.ray_runtime.own_phase import say_admitted
    from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log
    from airflow_provider_raydatallm.processor.ray_runtime.slow_imports import keep_pandas_from_pyarrow
    from airflow_provider_raydatallm.processor.slice_run import run_slice

    if args.nonce is None:  # what the engine prints stays in Ray's logs
        os.environ.setdefault("RAY_LOG_TO_DRIVER", "0")
    stop_on_sigterm()
    watch = OrphanWatch(args.heartbeat_key, args.orphan_timeout) if args.heartbeat_key else None

    def on_progress(progress: dict[str, Any]) -> None:
        if progress["step"] in ("attach", "publish"):  # it waits for no room
            say_admitted()
        spans.enter(progress["step"])
        _print_progress(args.nonce, progress)

    try:
        job = spec_of(args)
        job = job.changed(limits={"queue": max(job.limits.queue - args.waited, 1.0)}, **changes)
        start_log(job.slice_key)
        spans.begin(job.slice_key)
        if not job.runs_user_code:
            keep_pandas_from_pyarrow()
        with _stdout_for_results(args):
            return run_slice(
                job,
                on_progress,
                name=args.name,
                finish_by=args.finish_by,
                imports_s=process_seconds(),
                before_commit=(
                    partial(watch.wait_for_waiter, partial(_print_progress, args.nonce, {"step": "publish"}))
                    if watch is not None and not args.commit_alone
                    else None
                ),
            )
    except StopRequested as e:
        failure = e.failure
        if watch is not None and watch.has_stopped:
            why = f"no task waited for the job for {args.orphan_timeout:g} s (limits.orphan)"
            failure = replace(failure, sentence=why)
        raise SliceError.of(failure) from None
    finally:
        if watch is not None:
            watch.close()


def _retry(args: argparse.Namespace) -> int:
    return _run(args, rerun={"retry_quarantined": True})


def _stage(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.ray_runtime.driver import StopRequested, stop_on_sigterm
    from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log
    from airflow_provider_raydatallm.processor.slice_run import stage_slice

    if args.nonce is not None:
        raise SliceError("--stage-only is for people: a job with --nonce publishes", kind="input")
    if not args.keep_days:
        raise SliceError("--keep-days 0 would have the next gc remove what is staged", kind="input")
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "0")
    stop_on_sigterm()
    job = spec_of(args)
    start_log(job.slice_key)
    try:
        with _stdout_for_results(args):
            staged = stage_slice(
                job, partial(_print_progress, None), name=args.name, keep_days=args.keep_days
            )
    except StopRequested as e:
        raise SliceError.of(e.failure) from None
    if isinstance(staged, Report):
        print_report(staged, args)
        return 0
    report = staged.to_report(job.slice_path)
    if args.json:
        figures = report.model_dump(mode="json", exclude={"outcome", "published_version"})
        said = {"staged": staged.name, "follows": staged.follows, "report": figures}
        print_json(said, indent=2)
        return 0
    counts = report.counts
    say(
        f"{staged.name} is staged: {counts.succeeded:,} rows, {counts.quarantined:,} quarantined. Nothing is "
        f"published. `commit` or `discard` it within {staged.keep_days:g} days"
    )
    return 0


def _stdout_for_results(args: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    """Sends what the user's code prints to stderr; where results are in marked lines, it may stay."""
    return contextlib.nullcontext() if args.nonce is not None else contextlib.redirect_stdout(sys.stderr)


def _print_progress(nonce: str | None, progress: dict[str, Any]) -> None:
    """In a marked line for the Airflow side; without a nonce for people, on stderr."""
    if nonce is not None:
        print(encode_line("progress", nonce, progress), flush=True)
    else:
        print(progress_text(progress), file=sys.stderr, flush=True)
