"""`airflow-ray-llm slices`, `show`, `sample`, `watch`, `diff`, `missing`: a table's slices, as storage has
them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Container, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow_provider_raydatallm.cli.slice_text import (
    HELD_TITLES,
    STATE_TITLES,
    as_table,
    held_cells,
    held_json,
    state_cells,
    state_json,
    state_lines,
)
from airflow_provider_raydatallm.cli.waiting import Waiting
from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.result.errors import SliceError, problem_of
from airflow_provider_raydatallm.processor.commands.command import (
    Command,
    Commands,
    IncompleteError,
)
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
    from airflow_provider_raydatallm.contract.result.failure import Failure
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
    from airflow_provider_raydatallm.processor.store.versions import Version
    from airflow_provider_raydatallm.processor.tables.slice_state import SliceState

_WATCH_SECONDS = 2.0
#: In a row, before `watch` ends.
_MOST_FAILED_LOOKS = 5


def add_commands(commands: Commands) -> None:
    slices = add_table_command(
        commands,
        "slices",
        partial(_run, _slices),
        "list the slices of tables: what is published of each, what its run does, and why one failed",
        takes_several=True,
    )
    slices.add_argument(
        "--held", action="store_true", help="only those that wait for a person: since when, and why"
    )
    add_slice_command(
        commands,
        "show",
        partial(_run, _show),
        "show a slice: its report and advice, versions, staged ones, and its run, or why that failed",
        alias="status",
    )
    sample = add_slice_command(commands, "sample", partial(_run, _sample), "print rows of a slice")
    sample.add_argument("--rows", type=_row_count, default=5, help="how many (default: 5)")
    sample.add_argument(
        "--quarantined", action="store_true", help="of those that failed, with why; also before a publication"
    )
    sample.add_argument(
        "--staged", metavar="NAME", nargs="?", const="", help="of a staged version; by default the only one"
    )
    add_slice_command(commands, "watch", partial(_run, _watch), "follow the run of a slice to its end")
    diff = add_table_command(
        commands, "diff", partial(_run, _diff), "compare two slices, or two versions of one"
    )
    for name in ("before", "after"):
        diff.add_argument(name, metavar=name.upper(), help="2026-01-31, or 2026-01-31@3 for its version 3")
    missing = add_table_command(
        commands, "missing", partial(_run, _missing), "list the slices of a range that are not published"
    )
    missing.add_argument(
        "--dag", nargs=2, metavar=("DAG", "TASK"), help="whose schedule says which slices there should be"
    )
    missing.add_argument(
        "--from", dest="first", metavar="DATE", help="the first (of a DAG: as the page counts)"
    )
    missing.add_argument("--to", dest="last", metavar="DATE", help="the last (of a DAG: that is due)")
    missing.add_argument("--every", choices=("day", "hour"), default="day", help="(default: day)")
    missing.add_argument("--format", help="the operator's slice_format, where it was set")
    missing.add_argument(
        "--timezone", type=_zone, help="of the DAG's schedule, such as Europe/Berlin (default: UTC)"
    )


def _run(command: Command, args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.storage.filesystem import waiting_briefly

    try:
        with waiting_briefly():
            return command(args)
    except (BrokenPipeError, IncompleteError):
        raise
    except (SliceError, OSError, ValueError, OverflowError) as e:
        raise SliceError.of(problem_of(e)) from e


def _slices(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.listing import nothing_in

    found: list[tuple[str, SliceState]] = []
    problems: list[Failure] = []
    for table in args.tables:
        try:
            states = _read_table(table)
            if not states:
                raise nothing_in(table.output, table.metadata_path)
        except SliceError as e:  # of this table alone
            problems.append(e.failure)
            continue
        found += [(table.output, state) for state in states]
    of_state = held_json if args.held else lambda state: [state_json(state)]
    result = [{"output": output, **entry} for output, state in found for entry in of_state(state)]
    if problems:
        first, *others = problems
        complain(*(f"error: {other.text}" for other in others))
    if not args.json and (result or not problems):
        say(*_slice_lines(args, found))
    if problems:
        raise IncompleteError(first, {"slices": result} if result else {})
    if args.json:
        print_json(result)
    return 0


def _slice_lines(args: argparse.Namespace, found: Sequence[tuple[str, SliceState]]) -> list[str]:
    titles = HELD_TITLES if args.held else STATE_TITLES
    of_state = held_cells if args.held else lambda state: [state_cells(state)]
    rows = [(cell_text(output), *cells) for output, state in found for cells in of_state(state)]
    if not rows:
        return ["no slice waits for a person"]
    first = 0 if len(args.tables) > 1 else 1
    return as_table([row[first:] for row in [("table", *titles), *rows]])


def _show(args: argparse.Namespace) -> int:
    """Returns 1 where nothing is published, and a run failed or stopped."""
    from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
    from airflow_provider_raydatallm.processor.tables.listing import nothing_of
    from airflow_provider_raydatallm.processor.tables.slice_state import read_state

    folders = _folders(args, args.slice)
    with _waiting(args):
        state = read_state(args.slice, folders)
        if not state.is_known:
            raise nothing_of(args.output, args.slice, args.metadata_path)
        kept = kept_versions(folders) if state.report else []
    versions = [{"version": v.number, "published_at": v.body.get("published_at")} for v in kept]
    result = {**state_json(state), "versions": versions}
    if state.failure is not None:
        raise IncompleteError(state.failure, result)
    if args.json:
        print_json(result)
    else:
        say(*state_lines(state, kept))
    return int(state.run_failure is not None and not state.is_published)


def _sample(args: argparse.Namespace) -> int:
    with _waiting(args):
        rows = _unpublished_failures(args) if args.quarantined and args.staged is None else []
        is_kept = bool(rows)
        if not is_kept:
            rows = _published_rows(args) if args.staged is None else _staged_rows(args)
    if is_kept:
        complain("nothing is published: these rows failed in a run that published nothing, and are kept")
    if args.json:
        print_json(rows)
        return 0
    for number, row in enumerate(rows, 1):
        say(f"--- row {number} of {len(rows)}")
        for name, value in row.items():
            say(f"{cell_text(name)}: {cell_text(value)}")
    if not rows:
        is_there = "staged" if args.staged is not None else "published"
        say("no row is " + ("in quarantine" if args.quarantined else is_there))
    return 0


def _unpublished_failures(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns nothing where something is published: its quarantine counts then."""
    from airflow_provider_raydatallm.processor.store.versions import newest_version
    from airflow_provider_raydatallm.processor.tables.kept_failures import kept_failures

    folders = _folders(args, args.slice)
    return [] if newest_version(folders.metadata) is not None else kept_failures(folders, args.rows)


def _published_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    from airflow_provider_raydatallm.processor.tables.samples import first_rows

    version = _find_version(args, args.slice)
    return first_rows(_folders(args, args.slice), version, args.rows, quarantined=args.quarantined)[1]


def _staged_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    from airflow_provider_raydatallm.processor.publish.staged_commands import get_staged
    from airflow_provider_raydatallm.processor.tables.samples import first_rows

    folders = _folders(args, args.slice)
    staged = get_staged(folders, args.staged or None)
    return first_rows(folders, staged, args.rows, quarantined=args.quarantined)[1]


def _watch(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.slice_state import read_state

    folders, shown, failed_looks = _folders(args, args.slice), None, 0
    while True:
        with _waiting(args):
            state = read_state(args.slice, folders)
        if shown and state.error and state.run is None and failed_looks < _MOST_FAILED_LOOKS:
            failed_looks += 1
            complain(f"{state.error}: looking again")
            time.sleep(_WATCH_SECONDS)
            continue
        failed_looks = 0
        if state.run != "running":
            if (shown, state.run, state.error) == (None, None, None) and state.is_known:
                text = "no run of slice {} tells of its progress, which begins some ten seconds after its job"
                complain(text.format(args.slice))
            _show(args)
            if (failure := state.run_failure) is not None:
                raise SliceError.of(failure.about(f"the run of slice {state.key} {state.run}"))
            return 0
        assert state.progress is not None
        if state.progress["when"] != shown:
            shown = state.progress["when"]
            if args.json:
                print_json(state.progress)
            else:
                say(*progress_text(state.progress).split("\n"))
        time.sleep(_WATCH_SECONDS)


def _diff(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.comparison import compare_labels, compare_settings

    with _waiting(args):
        before, after = _version_of(args, args.before), _version_of(args, args.after)
    figures, labels = compare_settings(before, after), compare_labels(before, after)
    if args.json:
        print_json({"figures": [asdict(d) for d in figures], "labels": [asdict(d) for d in labels]})
        return 0
    rows = [("", args.before, args.after)]
    rows += [(d.name, number_text(d.before), number_text(d.after)) for d in figures]
    rows += [(f"share of {cell_text(d.name)}", _share(d.before), _share(d.after)) for d in labels]
    say(*as_table(rows))
    return 0


def _missing(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.gaps import missing_keys

    expected, note = _expected_keys(args)
    states = _read_table(args, only=frozenset(expected))
    if note:
        complain(f"note: counts {note}")
    unknown = {s.key: s.failure for s in states if s.failure is not None and not s.is_published}
    keys = missing_keys({state.key for state in states if state.is_published} | unknown.keys(), expected)
    unreadable = [key for key in expected if key in unknown]
    if not args.json:
        say(*keys)
    if unreadable:
        first, *others = (
            unknown[key].about(f"whether {key} is published cannot be read") for key in unreadable
        )
        complain(*(f"error: {other.text}" for other in others))
        raise IncompleteError(first, {"missing": keys, "unreadable": unreadable})
    if args.json:
        print_json(keys)
    elif not keys:
        say(f"all {len(expected)} slices are published" if expected else "no slice is due")
    return 0


def _expected_keys(args: argparse.Namespace) -> tuple[list[str], str]:
    """Returns them, and what a reader must know of them."""
    if args.dag:
        from airflow_provider_raydatallm.cli.dag_spec import scheduled_keys
        from airflow_provider_raydatallm.processor.tables.listing import find_slices

        known = {key for key, _ in find_slices(args.output, args.metadata_path)}
        dag, task = args.dag
        return scheduled_keys(dag, task, args.first, args.last, known)
    from airflow_provider_raydatallm.processor.tables.gaps import expected_keys

    if not (args.first and args.last):
        raise SliceError(
            "which slices there should be is not known",
            kind="input",
            advice="Give --dag DAG TASK, or --from and --to",
        )
    return expected_keys(args.first, args.last, args.every, args.format, args.timezone), ""


def _read_table(args: argparse.Namespace, only: Container[str] | None = None) -> list[SliceState]:
    """
    :param only: keys; what a table has beside them is not read.
    """
    from airflow_provider_raydatallm.processor.tables.listing import find_slices
    from airflow_provider_raydatallm.processor.tables.slice_state import read_states

    states: list[SliceState] = []
    with _waiting(args) as waiting:
        slices = list(find_slices(args.output, args.metadata_path))
        wanted = [one for one in slices if only is None or one[0] in only]
        for state in read_states(wanted):
            states.append(state)
            waiting.text = f"reading {args.output}: {len(states):,} of {len(wanted):,} slices"
    return states


def _waiting(args: argparse.Namespace) -> Waiting:
    return Waiting(f"reading {args.output}")


def _folders(args: argparse.Namespace, key: str) -> SliceFolders:
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

    return SliceFolders.open(slice_address(args, key).paths)


def _version_of(args: argparse.Namespace, name: str) -> Version:
    key, at, number = name.rpartition("@")
    if not (at and number.isdecimal()):
        return _find_version(args, name)
    try:
        return _find_version(args, key, int(number))
    except FileNotFoundError:
        try:
            return _find_version(args, name)  # of a slice whose key ends so
        except (FileNotFoundError, SliceError):
            pass
        raise


def _find_version(args: argparse.Namespace, key: str, number: int | None = None) -> Version:
    from airflow_provider_raydatallm.processor.tables.comparison import find_version
    from airflow_provider_raydatallm.processor.tables.listing import nothing_of
    from airflow_provider_raydatallm.processor.tables.slice_state import read_state

    folders = _folders(args, key)
    try:
        return find_version(folders, number)
    except FileNotFoundError as e:
        state = read_state(key, folders)
        if state.failure is not None:
            raise SliceError.of(state.failure) from e
        if state.is_known:
            raise
        raise nothing_of(args.output, key, args.metadata_path) from e


def _row_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows: give at least 1")
    return int(text)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        raise argparse.ArgumentTypeError(f"{name!r} is no timezone: give one such as Europe/Berlin") from None


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
