"""`versions`, `files`, `commit`, `discard`, `restore` and `gc`: the versions of a slice, without a run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.slice_paths import SLICE
from airflow_provider_raydatallm.processor.commands.command import Commands, IncompleteError, days
from airflow_provider_raydatallm.processor.commands.printing import (
    cell_text,
    complain,
    number_text,
    print_json,
    say,
)
from airflow_provider_raydatallm.processor.commands.table_argument import (
    add_slice_command,
    add_table_command,
    slice_address,
)

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.store.versions import Version


def add_version_commands(commands: Commands) -> None:
    add_slice_command(
        commands,
        "versions",
        _versions,
        "list the versions of a slice that can be read or restored, the newest first, and staged ones",
    )
    add_slice_command(
        commands, "files", _files, "list the published files of a slice, of one version and no other"
    )
    commit = add_slice_command(
        commands, "commit", _commit, "publish a staged version of a slice, without a run"
    )
    discard = add_slice_command(
        commands, "discard", _discard, "discard a staged version of a slice; its finished rows are kept"
    )
    for command in (commit, discard):
        command.add_argument(
            "staged", metavar="NAME", nargs="?", help="as `versions` lists it; by default the only one"
        )
    discard.add_argument(
        "--again",
        metavar="CONDITION",
        help="have the next run ask its rows again where this holds, in SQL over the published columns, such "
        'as "answer IS NULL"; without it, none',
    )
    restore = add_slice_command(commands, "restore", _restore, "publish a kept version of a slice again")
    restore.add_argument(
        "version", type=_version_number, metavar="VERSION", help="its number, as `versions` lists it"
    )
    for command in (commit, restore):
        command.add_argument(
            "--accept-columns", action="store_true", help="also if the table's other slices have others"
        )
    gc = add_table_command(
        commands, "gc", _gc, "remove what abandoned runs left in the slices of a table, and in its trials"
    )
    gc.add_argument("--days", type=days, default=7, help="unchanged for this long (default: 7)")
    gc.add_argument("--dry-run", action="store_true", help="only show what would be removed")


def _version_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no version: give OUTPUT SLICE VERSION, such as 3")
    return int(text)


def _versions(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.staged_commands import staged_listing
    from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

    folders = SliceFolders.open(slice_address(args).paths)
    versions = [_entry(version) for version in kept_versions(folders)]
    staged = staged_listing(folders)
    if not (versions or staged):
        raise SliceError(
            f"nothing is published or staged in {folders.table.url}",
            kind="input",
            advice="`show` says what a run left of it",
        )
    if args.json:
        print_json([*versions, *staged])
        return 0
    say(*(f"{v['version']}  {cell_text(v['published_at'])}  {_figures(v)}" for v in versions))
    say(*map(staged_text, staged))
    return 0


def _files(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.sinks.reading import published_files

    of = slice_address(args)
    try:
        paths = published_files(of.slice_path, metadata_path=of.paths.metadata.rpartition("/")[0])
    except FileNotFoundError as e:
        raise SliceError(str(e), kind="input") from e
    if args.json:
        print_json(paths)
    else:
        say(*paths)
    return 0


def _entry(version: Version) -> dict[str, Any]:
    body, counts = version.body, version.body["report"]["counts"]
    return {
        "version": version.number,
        "published_at": body.get("published_at"),
        "rows": counts.get("succeeded"),
        "quarantined": counts.get("quarantined"),
        "model_source": body.get("model_source"),
        "fingerprint": version.fingerprint,
    }


def _figures(entry: Mapping[str, Any]) -> str:
    rows, quarantined = number_text(entry["rows"]), number_text(entry["quarantined"])
    question = f"{cell_text(entry['model_source'])}  fingerprint {cell_text(entry['fingerprint'])}"
    return f"{rows} rows, {quarantined} quarantined  {question}"


def staged_text(staged: Mapping[str, Any]) -> str:
    """An entry of `staged_listing`, in one line."""
    known = "" if staged["fingerprint"] is None else f"  {cell_text(staged['staged_at'])}  {_figures(staged)}"
    why = why_held(staged)
    return f"staged {staged['staged']}{known}" + (f": {why}" if why else "")


def why_held(staged: Mapping[str, Any]) -> str:
    """Why an entry of `staged_listing` waits for a person, or can no longer be published."""
    gates = "; ".join(str(GateVerdict.model_validate(gate)) for gate in staged["held_by"] or ())
    return "; ".join(filter(None, [gates and f"held, as {cell_text(gates)}", staged["problem"]]))


def _commit(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.staged_commands import commit_for_people

    version = commit_for_people(slice_address(args), args.staged, accepts_change=args.accept_columns)
    name = version.body["staged_version"]
    if args.json:
        print_json({"committed": name, "published_version": version.number})
    else:
        say(f"{name} is published, as version {version.number}")
    return 0


def _discard(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.staged_commands import discard_for_people

    result: dict[str, Any]
    if args.again is None:
        name = discard_for_people(slice_address(args), args.staged)
        result, kept = {"discarded": name}, "its finished rows are kept"
    else:
        from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people

        name, rows = ask_again_for_people(slice_address(args), args.staged, args.again)
        result = {"discarded": name, "asked_again": rows}
        kept = f"the next run asks {rows:,} of its rows again, and the others are kept"
    if args.json:
        print_json(result)
    else:
        say(f"{name} is discarded; {kept}")
    return 0


def _restore(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.restore import restore_version

    version = restore_version(slice_address(args), args.version, accepts_change=args.accept_columns)
    if args.json:
        print_json({"restored": args.version, "published_version": version.number})
    else:
        say(f"version {args.version} is published again, as version {version.number}")
    return 0


def _gc(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.publish.garbage import find_leftovers, remove_leftovers
    from airflow_provider_raydatallm.processor.tables.listing import find_slices, nothing_in

    leftovers: list[dict[str, Any]] = []
    staying: dict[str, Failure] = {}
    for found in find_leftovers(slice_address(args, SLICE), args.days):
        verb = "would remove" if args.dry_run else "removed"
        where = found.folders.metadata.url
        try:
            if not (args.dry_run or remove_leftovers(found, args.days)):
                continue  # a run is at work there now
        except SliceError as e:  # of this slice alone
            staying[where] = e.failure.about(f"what runs left in {where} stays")
            continue
        leftovers.append({"folder": where, "age_days": round(found.age_days, 1)})
        if not args.json:
            say(f"{verb} what runs left in {where}, {found.age_days:.1f} days old")
    if not leftovers and next(find_slices(args.output, args.metadata_path), None) is None:
        raise nothing_in(args.output, args.metadata_path)
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
