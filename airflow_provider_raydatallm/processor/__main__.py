"""`python -m airflow_provider_raydatallm.processor run SPEC`: runs one slice on the Ray cluster that this
process can reach.

SPEC is a JSON file of a `SliceJob`: a path, a URL that fsspec opens, or `package:NAME` for one that was
shipped with the job. The report is printed as JSON; with --nonce as a marked line
(`contract.log.marked_lines`), which the Airflow side looks for.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import json
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from airflow_provider_raydatallm.contract.log.marked_lines import LineKind, encode_line
from airflow_provider_raydatallm.contract.log.progress_text import progress_text, result_lines
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from airflow_provider_raydatallm.processor.commands.command import (
    Command,
    IncompleteError,
    add_command,
    run_command,
)
from airflow_provider_raydatallm.processor.commands.printing import complain, print_json, say

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.metrics.spans import RunSpans


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="airflow_provider_raydatallm.processor", description=__doc__)
    add_commands(parser.add_subparsers(dest="command", required=True))
    args = parser.parse_args(argv)
    return run_command(args.run, args)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the processor's commands to a command line."""

    def add(name: str, run: Command, what: str) -> argparse.ArgumentParser:
        command = add_command(commands, name, run, what)
        command.add_argument(
            "spec", metavar="SPEC", help="JSON file of a slice's job: a path, a URL, or package:NAME"
        )
        return command

    run = add("run", _run, "answer and publish a slice")
    retry = add("retry-quarantined", _retry, "answer the rows in the slice's quarantine again")
    status = add("status", _status, "show what is published, and the progress of a run; starts no engine")
    files = add("files", _files, "list the published files of a slice, and no others")
    for command in (run, retry, status, files):
        command.add_argument("--nonce", help="print everything in marked lines that carry this text")
    status.add_argument("--name", help="only what this run published, or left as it was")
    for command in (run, retry):
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
        "--keep-days", type=_days, default=30, help="of --stage-only: `gc` keeps it so long (default: 30)"
    )
    plan = add("plan", _plan, "show what a run would do, and what is wrong with it; starts nothing")
    plan.add_argument("--gpu-hour-price", type=float, help="price of a GPU hour, to estimate the cost")
    add(
        "versions",
        _versions,
        "list the versions of a slice that can be read or restored, the newest first, and staged ones",
    )
    commit = add("commit", _commit, "publish a staged version of a slice, without a run")
    discard = add("discard", _discard, "discard a staged version of a slice; its finished rows are kept")
    for command in (commit, discard):
        command.add_argument(
            "staged", metavar="NAME", nargs="?", help="as `versions` lists it; by default the only one"
        )
    restore = add("restore", _restore, "publish a kept version of a slice again")
    restore.add_argument("version", type=int, metavar="VERSION", help="its number, as `versions` lists it")
    gc = add("gc", _gc, "remove what abandoned runs left in the slices of the table")
    gc.add_argument("--days", type=_days, default=7, help="unchanged for this long (default: 7)")
    gc.add_argument("--dry-run", action="store_true", help="only show what would be removed")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not days >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return days


def load_spec(source: str) -> SliceJob:
    """:raises SliceError: when there is no such spec, or it is not valid."""
    try:
        if source.startswith("package:"):
            package = source.removeprefix("package:")
            text = importlib.resources.files(package).joinpath("spec.json").read_text()
        else:
            from airflow_provider_raydatallm.processor.storage.filesystem import open_fs

            fs, path = open_fs(source)
            text = fs.cat_file(path).decode("utf-8-sig")  # some editors begin a file with a mark
    except SliceError:
        raise
    except FileNotFoundError as e:  # a store's has no text but the path
        raise SliceError(f"cannot read the spec {source}: there is no such file", kind="input") from e
    except Exception as e:  # stores fail with errors of many types
        raise SliceError(f"cannot read the spec {source}: {e}", kind="input") from e
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise SliceError(
                f"the spec {source} is not valid: it is no JSON object",
                kind="input",
                row_texts=(repr(text[:40]),),
            )
        return SliceJob.model_validate(value)
    except ValueError as e:
        why = describe_problems(e) if isinstance(e, ValidationError) else e
        raise SliceError(f"the spec {source} is not valid: {why}", kind="input") from e


def _run(args: argparse.Namespace, **changes: Any) -> int:
    from airflow_provider_raydatallm.processor.metrics.spans import run_spans

    if getattr(args, "stage_only", False):
        return _stage(args)
    with run_spans() as spans:
        report = _run_slice(args, spans, changes)
        spans.succeed(report)
        _print_report(report, args)
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
        _print("progress", args.nonce, progress)

    try:
        job = load_spec(args.spec)
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
                    partial(
                        watch.wait_for_waiter, partial(_print, "progress", args.nonce, {"step": "publish"})
                    )
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


def _stdout_for_results(args: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    """Sends what the user's code prints to stderr; where results are in marked lines, it may stay."""
    return contextlib.nullcontext() if args.nonce is not None else contextlib.redirect_stdout(sys.stderr)


def _retry(args: argparse.Namespace) -> int:
    return _run(args, rerun={"retry_quarantined": True})


def _status(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.published import (
        current_report,
        report_of_run,
        slice_progress,
    )

    job = load_spec(args.spec)
    report = current_report(job) if args.name is None else report_of_run(job, args.name)
    progress = slice_progress(job) if args.nonce is None else None
    if progress is not None:
        print(f"{progress['when']}: {progress_text(progress)}", file=sys.stderr, flush=True)
    if report is None and args.nonce is None and not args.json:
        print(_why_nothing(job), flush=True)
    else:
        _print_report(report, args)
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


def _plan(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor import run_plan

    with _stdout_for_results(args):
        plan = run_plan.plan_run(load_spec(args.spec), run_plan.reachable_cluster())
    price = args.gpu_hour_price
    as_json, as_table = run_plan.as_json, run_plan.as_table
    print(json.dumps(as_json(plan, price), indent=2) if args.json else as_table(plan, price))
    return 1 if any(f.severity == "error" for f in plan.findings) else 0


def _files(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.sinks.reading import published_files

    job = load_spec(args.spec)
    try:
        paths = published_files(job.slice_path, metadata_path=job.paths.metadata.rpartition("/")[0])
    except FileNotFoundError as e:
        raise SliceError(str(e), kind="input") from e
    print(json.dumps(paths) if args.json else "\n".join(paths))
    return 0


def _stage(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.contract.result.report import Report
    from airflow_provider_raydatallm.processor.ray_runtime.driver import StopRequested, stop_on_sigterm
    from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log
    from airflow_provider_raydatallm.processor.slice_run import stage_slice

    if args.nonce is not None:
        raise SliceError("--stage-only is for people: a job with --nonce publishes", kind="input")
    if not args.keep_days:
        raise SliceError("--keep-days 0 would have the next gc remove what is staged", kind="input")
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "0")
    stop_on_sigterm()
    job = load_spec(args.spec)
    start_log(job.slice_key)
    try:
        with _stdout_for_results(args):
            staged = stage_slice(
                job, partial(_print, "progress", None), name=args.name, keep_days=args.keep_days
            )
    except StopRequested:
        raise SliceError("the run was told to stop; its finished rows are kept", kind="stopped") from None
    if isinstance(staged, Report):
        _print_report(staged, args)
        return 0
    report = staged.to_report(job.slice_path)
    if args.json:
        said = {"staged": staged.name, "follows": staged.follows, "report": report.model_dump(mode="json")}
        print(json.dumps(said, indent=2), flush=True)
        return 0
    counts = report.counts
    print(
        f"{staged.name} is staged: {counts.succeeded:,} rows, {counts.quarantined:,} quarantined. Nothing is "
        f"published. `commit` or `discard` it within {staged.keep_days:g} days",
        flush=True,
    )
    return 0


def _versions(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.commit import staged_listing
    from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

    folders = SliceFolders.open(load_spec(args.spec).paths)
    versions = [
        {
            "version": version.number,
            "published_at": version.body["published_at"],
            "rows": version.body["report"]["counts"]["succeeded"],
            "quarantined": version.body["report"]["counts"]["quarantined"],
            "model_source": version.body["model_source"],
            "fingerprint": version.fingerprint,
        }
        for version in kept_versions(folders)
    ]
    staged = staged_listing(folders)
    if args.json:
        print(json.dumps([*versions, *staged]))
        return 0
    for v in versions:
        print(
            f"{v['version']}  {v['published_at']}  {v['rows']:,} rows, {v['quarantined']:,} quarantined  "
            f"{v['model_source']}  fingerprint {v['fingerprint']}"
        )
    if not versions:
        print("nothing is published")
    for s in staged:
        if s["problem"] is not None and s["rows"] is None:
            print(f"staged {s['staged']}: {s['problem']}")
            continue
        print(
            f"staged {s['staged']}  {s['staged_at']}  {s['rows']:,} rows, {s['quarantined']:,} quarantined  "
            f"{s['model_source']}  fingerprint {s['fingerprint']}"
            + (f": {s['problem']}" if s["problem"] else "")
        )
    return 0


def _commit(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.commit import commit_for_people

    version = commit_for_people(load_spec(args.spec), args.staged)
    said = f"{version.body['staged_version']} is published, as version {version.number}"
    result = {"committed": version.body["staged_version"], "published_version": version.number}
    print(json.dumps(result) if args.json else said)
    return 0


def _discard(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.commit import discard_for_people

    name = discard_for_people(load_spec(args.spec), args.staged)
    print(
        json.dumps({"discarded": name}) if args.json else f"{name} is discarded; its finished rows are kept"
    )
    return 0


def _restore(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.restore import restore_version

    version = restore_version(load_spec(args.spec), args.version)
    said = f"version {args.version} is published again, as version {version.number}"
    print(json.dumps({"restored": args.version, "published_version": version.number}) if args.json else said)
    return 0


def _gc(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.garbage import find_leftovers, remove_leftovers

    leftovers: list[dict[str, Any]] = []
    staying: dict[str, Failure] = {}
    for found in find_leftovers(load_spec(args.spec), args.days):
        verb = "would remove" if args.dry_run else "removed"
        where = found.folders.metadata.url
        try:
            if not args.dry_run:
                remove_leftovers(found.folders, args.days)
        except SliceError as e:  # of this slice alone
            staying[where] = e.failure.about(f"what runs left in {where} stays")
            continue
        leftovers.append({"folder": where, "age_days": round(found.age_days, 1)})
        if not args.json:
            say(f"{verb} what runs left in {where}, {found.age_days:.1f} days old")
    result = {"removed": not args.dry_run, "leftovers": leftovers}
    if staying:
        first, *others = staying.values()
        complain(*(f"error: {other.text}" for other in others))
        raise IncompleteError(first, {**result, "staying": list(staying)})
    if args.json:
        print_json(result)
    elif not leftovers:
        say(f"no run left anything that is unchanged for {args.days:g} days")
    return 0


def _print_report(report: Report | None, args: argparse.Namespace) -> None:
    value = None if report is None else report.model_dump(mode="json")
    if args.nonce is not None:
        _print("report", args.nonce, value)
    elif args.json:
        print(json.dumps(value, indent=2), flush=True)
    elif report is not None:
        print("\n".join(result_lines(report)), flush=True)


def _print(kind: LineKind, nonce: str | None, value: Any) -> None:
    """A marked line for the Airflow side. Without a nonce, progress for people, on stderr."""
    if nonce is not None:
        print(encode_line(kind, nonce, value), flush=True)
    elif kind == "progress":
        print(progress_text(value), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
