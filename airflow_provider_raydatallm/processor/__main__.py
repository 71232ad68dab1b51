"""`python -m airflow_provider_raydatallm.processor run SPEC`: one slice, on the Ray cluster that this process
can reach.

SPEC is a JSON file of a `SliceJob`: a path, a URL that fsspec opens, or `package:NAME` for one that was
shipped with the job. The report is printed as JSON; with --nonce as one marked line (`lines.py`), which the
Airflow side looks for.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import sys
import traceback
from typing import Any

import pydantic

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.log_lines import LineKind, encode_line
from airflow_provider_raydatallm.contract.progress_text import progress_text
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.root_error import root_error

_MESSAGE_CHARACTERS = 8000


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="airflow_provider_raydatallm.processor", description=__doc__)
    add_commands(parser.add_subparsers(dest="command", required=True))
    args = parser.parse_args(argv)
    return int(args.run(args))


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the processor's commands to a command line."""
    for name, run, what in (
        ("run", _run, "answer and publish a slice"),
        ("retry-quarantined", _retry, "answer the rows in the slice's quarantine again"),
        ("status", _status, "what is published for a spec, and what is being made; starts no engine"),
        ("files", _files, "the published files of a slice, and nothing that is not published"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument(
            "spec", metavar="SPEC", help="JSON file of the slice's job: a path, a URL, or package:NAME"
        )
        command.add_argument("--nonce", help="say everything in marked lines that carry this text")
        if run in (_run, _retry):
            command.add_argument("--name", help="what runs that wait for this one call it")
            command.add_argument(
                "--finish-by", type=float, metavar="EPOCH", help="warn when it will be later than this"
            )
            command.add_argument("--owner", help="end when this key of the cluster's store is not renewed")
            command.add_argument("--orphan-timeout", type=float, default=3600, help="for so many seconds")
        command.set_defaults(run=run)
    plan = commands.add_parser("plan", help="what a run would do, and what is wrong with it; starts nothing")
    plan.add_argument(
        "spec", metavar="SPEC", help="JSON file of the slice's job: a path, a URL, or package:NAME"
    )
    plan.add_argument("--gpu-hour-price", type=float, help="what a GPU costs an hour, to estimate the cost")
    plan.add_argument("--json", action="store_true", help="print JSON")
    plan.set_defaults(run=_plan, nonce=None)
    gc = commands.add_parser("gc", help="remove checkpoints that abandoned runs of a table left")
    gc.add_argument("spec", metavar="SPEC", help="the job of any slice of the table")
    gc.add_argument("--days", type=float, default=7, help="untouched for so long (default: 7)")
    gc.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    gc.set_defaults(run=_gc, nonce=None)


def load_spec(source: str) -> SliceJob:
    """:raises SliceError: when there is no such spec, or it is none."""
    try:
        if source.startswith("package:"):
            package = source.removeprefix("package:")
            text = importlib.resources.files(package).joinpath("spec.json").read_text()
        else:
            from airflow_provider_raydatallm.processor.storage import open_fs

            fs, path = open_fs(source)
            text = fs.cat_file(path).decode()
        return SliceJob.model_validate_json(text)
    except (OSError, ModuleNotFoundError) as e:
        raise SliceError(f"cannot read the spec {source}: {e}", kind="input") from e
    except pydantic.ValidationError as e:
        raise SliceError(f"the spec {source} is not valid: {e}", kind="input") from e


def _run(args: argparse.Namespace) -> int:
    return _make(args, {})


def _retry(args: argparse.Namespace) -> int:
    return _make(args, {"retry_quarantined": True})


def _make(args: argparse.Namespace, changes: dict[str, Any]) -> int:
    from airflow_provider_raydatallm.processor.cluster.orphan_watch import stop_when_orphaned
    from airflow_provider_raydatallm.processor.cluster.ray_cluster import StopRequested, stop_on_sigterm
    from airflow_provider_raydatallm.processor.metrics.startup_time import process_seconds
    from airflow_provider_raydatallm.processor.slice_run import run_slice

    stop_on_sigterm()
    orphaned = stop_when_orphaned(args.owner, args.orphan_timeout) if args.owner else None
    try:
        job = load_spec(args.spec).model_copy(update=changes)
        report = run_slice(
            job,
            lambda value: _say("progress", args.nonce, value),
            name=args.name,
            finish_by=args.finish_by,
            imports=process_seconds(),
        )
    except StopRequested:
        why = "the job was told to stop"
        if orphaned is not None and orphaned.is_set():
            why = f"no task waited for the job for {args.orphan_timeout:g} s (orphan_timeout)"
        return _failed(SliceError(f"{why}; its finished rows are kept", kind="stopped"), args.nonce)
    except Exception as e:
        return _failed(e, args.nonce)
    for advice in report.advice or ():
        print(f"advice: {advice}", file=sys.stderr, flush=True)
    _say("report", args.nonce, report.model_dump(mode="json"))
    return 0


def _status(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.store.published import current_report, slice_progress

    try:
        job = load_spec(args.spec)
        report = current_report(job)
        progress = slice_progress(job) if args.nonce is None else None
    except Exception as e:
        return _failed(e, args.nonce)
    if progress is not None:
        print(f"{progress['when']}: {progress_text(progress)}", file=sys.stderr, flush=True)
    _say("report", args.nonce, None if report is None else report.model_dump(mode="json"))
    return 0


def _plan(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor import run_plan

    try:
        plan = run_plan.plan_run(load_spec(args.spec), run_plan.reachable_cluster())
    except Exception as e:
        return _failed(e, None)
    said = (
        json.dumps(run_plan.as_json(plan), indent=2)
        if args.json
        else run_plan.as_table(plan, args.gpu_hour_price)
    )
    print(said)
    return 1 if any(f.severity == "error" for f in plan.findings) else 0


def _files(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.store.published import published_files

    try:
        files = published_files(load_spec(args.spec).slice_path)
    except Exception as e:
        return _failed(e, args.nonce)
    for path in files:
        print(path)
    return 0


def _gc(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.store.garbage import abandoned_checkpoints, collect

    try:
        for store, age in abandoned_checkpoints(load_spec(args.spec), args.days):
            verb = "would remove" if args.dry_run else "removed"
            print(f"{verb} {store.path('_checkpoint')}, {age:.1f} days old")
            if not args.dry_run:
                collect(store)
    except Exception as e:
        return _failed(e, None)
    return 0


def _failed(error: Exception, nonce: str | None) -> int:
    from airflow_provider_raydatallm.processor.cluster.ray_cluster import process_log

    kind, message = root_error(error, process_log)
    if not isinstance(error, SliceError):
        traceback.print_exception(error)
    _say("error", nonce, {"kind": kind, "message": message[:_MESSAGE_CHARACTERS]})
    print(f"error: {message}", file=sys.stderr, flush=True)
    return 1


def _say(kind: LineKind, nonce: str | None, value: Any) -> None:
    """A marked line for the Airflow side. Without a nonce people read: JSON on stdout, progress on stderr."""
    if nonce is not None:
        print(encode_line(kind, nonce, value), flush=True)
    elif kind == "report":
        print(json.dumps(value, indent=2), flush=True)
    elif kind == "progress":
        print(progress_text(value), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
