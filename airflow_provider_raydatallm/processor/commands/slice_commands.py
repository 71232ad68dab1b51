"""`plan`: what a run would do; `status`, by which a task asks what its run published; and `decide`, by which
it passes on what a person decided."""

from __future__ import annotations

import argparse
import contextlib
import sys

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.commands.command import Commands, IncompleteError, add_nonce
from airflow_provider_raydatallm.processor.commands.printing import (
    print_json,
    print_outcome,
    print_report,
    say,
)
from airflow_provider_raydatallm.processor.commands.spec_file import add_spec_command, spec_of


def add_plan_command(commands: Commands) -> None:
    plan = add_spec_command(
        commands, "plan", _plan, "show what a run would do, and what is wrong with it; starts nothing"
    )
    price = "price of a GPU hour, to estimate the cost; default: the spec's"
    plan.add_argument("--gpu-hour-price", type=float, help=price)


def add_status_command(commands: Commands) -> None:
    """For a task whose run ended without a report, as a Ray job; people have `show`."""
    status = add_spec_command(commands, "status", _status, "print the report of what is published of a spec")
    add_nonce(status)
    status.add_argument("--name", help="only what this run published, or left as it was")


def add_decide_command(commands: Commands) -> None:
    """For a task whose slice waited for a person, as a Ray job; people have `commit` and `discard`."""
    decide = add_spec_command(commands, "decide", _decide, "publish or discard a staged version of a spec")
    add_nonce(decide)
    decide.add_argument("--staged", required=True, metavar="NAME", help="as `versions` lists it")
    decide.add_argument("--reject", action="store_true", help="discard it; its finished rows are kept")
    again = "discard it, and have the next run ask its rows again where this holds, in SQL"
    decide.add_argument("--again", metavar="CONDITION", help=again)


def _decide(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.staged_commands import (
        discard_rejected,
        publish_approved,
    )

    job = spec_of(args)
    if args.again is not None:
        from airflow_provider_raydatallm.processor.ask_again import ask_again_rejected

        ask_again_rejected(job, args.staged, args.again)
        print_outcome({"rejected": args.staged}, args)
    elif args.reject:
        discard_rejected(job, args.staged)
        print_outcome({"rejected": args.staged}, args)
    else:
        print_report(publish_approved(job, args.staged), args)
    return 0


def _status(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.published import current_report, report_of_run

    job = spec_of(args)
    report = current_report(job) if args.name is None else report_of_run(job, args.name)
    if report is None and args.nonce is None:
        raise SliceError(f"nothing is published of this spec in {job.slice_path}", kind="input")
    print_report(report, args)
    return 0


def _plan(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor import run_plan
    from airflow_provider_raydatallm.processor.sizing.checks import raise_errors

    with contextlib.redirect_stdout(sys.stderr):  # of the user's code
        plan = run_plan.plan_run(spec_of(args), run_plan.reachable_cluster())
    price = plan.job.engine.gpu_price if args.gpu_hour_price is None else args.gpu_hour_price
    result = run_plan.as_json(plan, price)
    if not args.json:
        say(*run_plan.as_table(plan, price).split("\n"))
    try:
        raise_errors(plan.findings)
    except SliceError as e:
        raise IncompleteError(e.failure, result) from e
    if args.json:
        print_json(result, indent=2)
    return 0
