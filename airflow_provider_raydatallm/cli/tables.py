"""`airflow-ray-llm slices`, `show`, `sample`, `watch`, `diff`, `missing`: a table's slices, by its
`output_path`, without a spec."""

from __future__ import annotations

import argparse
import base64
import json
import math
import sys
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO
from zoneinfo import ZoneInfo

from airflow_provider_raydatallm.cli.waiting import Waiting
from airflow_provider_raydatallm.contract.log.progress_text import progress_text, result_lines
from airflow_provider_raydatallm.contract.result.errors import SliceError, problem_of
from airflow_provider_raydatallm.contract.slice_paths import slice_folder, slice_paths
from airflow_provider_raydatallm.processor.__main__ import add_command

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
    from airflow_provider_raydatallm.processor.store.versions import Version
    from airflow_provider_raydatallm.processor.tables.slice_state import SliceState

_WATCH_SECONDS = 2.0
#: In a row, before `watch` ends.
_MOST_FAILED_LOOKS = 5
_CELL_CHARACTERS = 200


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def add(name: str, run: Callable[[argparse.Namespace], int], what: str) -> argparse.ArgumentParser:
        command = add_command(commands, name, partial(_run, run), what)
        command.add_argument(
            "output", metavar="OUTPUT", help="the operator's output_path: the table's folder, or with {slice}"
        )
        command.add_argument("--metadata-path", help="the operator's publish.metadata_path, where it was set")
        return command

    add("slices", _slices, "list the slices of a table: what is published of each, and what its run does")
    show = add("show", _show, "show the report of a slice and its versions")
    sample = add("sample", _sample, "print rows of a slice")
    sample.add_argument("--rows", type=_row_count, default=5, help="how many (default: 5)")
    sample.add_argument("--quarantined", action="store_true", help="of those that failed, with why")
    watch = add("watch", _watch, "follow the run of a slice to its end")
    for command in (show, sample, watch):
        command.add_argument("slice", metavar="SLICE", help="its key, such as 2026-01-31")
    diff = add("diff", _diff, "compare two slices, or two versions of one")
    for name in ("before", "after"):
        diff.add_argument(name, metavar=name.upper(), help="2026-01-31, or 2026-01-31@3 for its version 3")
    missing = add("missing", _missing, "list the days of a range of which nothing is published")
    missing.add_argument("--from", dest="first", metavar="DATE", required=True, help="the first one")
    missing.add_argument("--to", dest="last", metavar="DATE", required=True, help="the last one")
    missing.add_argument("--every", choices=("day", "hour"), default="day", help="(default: day)")
    missing.add_argument("--format", help="the operator's slice_format, where it was set")
    missing.add_argument(
        "--timezone", type=_zone, help="of the DAG's schedule, such as Europe/Berlin (default: UTC)"
    )


def _run(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.storage.filesystem import waiting_briefly

    try:
        with waiting_briefly():
            return command(args)
    except BrokenPipeError:
        raise
    except (SliceError, OSError, ValueError, OverflowError) as e:
        _complain(f"error: {problem_of(e)}")
        return 1


def _slices(args: argparse.Namespace) -> int:
    states = _read_table(args)
    if args.json:
        _print_json([_as_json(state) for state in states])
    elif states:
        rows = [("slice", "state", "rows", "quarantined", "rows/s", "tokens", "version", "published")]
        _say(_as_table([*rows, *map(_state_cells, states)]))
    return 0


def _show(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
    from airflow_provider_raydatallm.processor.tables.slice_state import read_state

    folders = _folders(args, args.slice)
    with _waiting(args):
        state = read_state(args.slice, folders)
        if not (state.error or state.report or state.progress):
            raise _no_run(args, args.slice)
        kept = kept_versions(folders) if state.report else []
    if args.json:
        versions = [{"version": v.number, "published_at": v.body.get("published_at")} for v in kept]
        _print_json({**_as_json(state), "versions": versions})
    if state.error:
        raise FileNotFoundError(state.error)
    if args.json:
        return 0
    if state.report is not None:
        _say("\n".join(result_lines(state.report)))
        for section in ("counts", "tokens", "seconds", "throughput", "utilisation"):
            values = getattr(state.report, section).model_dump(exclude_none=True, exclude={"start"})
            _say(f"{section}: " + (", ".join(f"{k} {v:,}" for k, v in values.items()) or "not measured"))
        _say("versions: " + ", ".join(f"{v.number} ({v.body.get('published_at')})" for v in kept))
    if state.progress is not None:
        _say(f"{state.run}, {state.progress['when']}: {progress_text(state.progress)}")
    return 0


def _sample(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.samples import first_rows

    with _waiting(args):
        version = _find_version(args, args.slice)
        _, rows = first_rows(_folders(args, args.slice), version, args.rows, quarantined=args.quarantined)
    if args.json:
        _print_json(rows)
        return 0
    for number, row in enumerate(rows, 1):
        _say(f"--- row {number} of {len(rows)}")
        for name, value in row.items():
            _say(f"{_printable(name)}: {_printable(value)}")
    if not rows:
        _say("no row " + ("is in quarantine" if args.quarantined else "is published"))
    return 0


def _watch(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.slice_state import read_state

    folders, shown, failed_looks = _folders(args, args.slice), None, 0
    while True:
        with _waiting(args):
            state = read_state(args.slice, folders)
        if shown and state.error and state.run is None and failed_looks < _MOST_FAILED_LOOKS:
            failed_looks += 1
            _complain(f"{state.error}: looking again")
            time.sleep(_WATCH_SECONDS)
            continue
        failed_looks = 0
        if state.run != "running":
            if (shown, state.run, state.error) == (None, None, None):
                text = "no run of slice {} tells of its progress, which begins some ten seconds after its job"
                _complain(text.format(args.slice))
            return _show(args) or int(state.run in ("failed", "stopped"))
        assert state.progress is not None
        if state.progress["when"] != shown:
            shown = state.progress["when"]
            if args.json:
                _print_json(state.progress)
            else:
                _say(progress_text(state.progress))
            print(end="", flush=True)
        time.sleep(_WATCH_SECONDS)


def _diff(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.comparison import compare_labels, compare_settings

    with _waiting(args):
        before, after = _version_of(args, args.before), _version_of(args, args.after)
    figures, labels = compare_settings(before, after), compare_labels(before, after)
    if args.json:
        _print_json({"figures": [asdict(d) for d in figures], "labels": [asdict(d) for d in labels]})
        return 0
    rows = [("", args.before, args.after)]
    rows += [(d.name, _number(d.before), _number(d.after)) for d in figures]
    rows += [(f"share of {_printable(d.name)}", _share(d.before), _share(d.after)) for d in labels]
    _say(_as_table(rows))
    return 0


def _missing(args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.tables.gaps import expected_keys, missing_keys

    expected = expected_keys(args.first, args.last, args.every, args.format, args.timezone)
    states = _read_table(args, only=frozenset(expected))
    unknown = {state.key: state.error for state in states if state.error and not state.is_published}
    keys = missing_keys({state.key for state in states if state.is_published} | unknown.keys(), expected)
    unreadable = [key for key in expected if key in unknown]
    if args.json:
        _print_json(keys)
    elif keys or not unreadable:
        _say("\n".join(keys) or f"all {len(expected)} slices are published")
    for key in unreadable:
        _complain(f"error: whether {key} is published cannot be read: {unknown[key]}")
    return 1 if unreadable else 0


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
    if not slices:
        _complain(_no_slice(args))
    return states


def _waiting(args: argparse.Namespace) -> Waiting:
    return Waiting(f"reading {args.output}")


def _folders(args: argparse.Namespace, key: str) -> SliceFolders:
    from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

    return SliceFolders.open(slice_paths(slice_folder(args.output, key), args.metadata_path))


def _version_of(args: argparse.Namespace, name: str) -> Version:
    key, at, number = name.rpartition("@")
    if not (at and number.isdecimal()):
        return _find_version(args, name)
    try:
        return _find_version(args, key, int(number))
    except FileNotFoundError:
        try:
            return _find_version(args, name)  # of a slice whose key ends so
        except FileNotFoundError:
            pass
        raise


def _find_version(args: argparse.Namespace, key: str, number: int | None = None) -> Version:
    from airflow_provider_raydatallm.processor.tables.comparison import find_version
    from airflow_provider_raydatallm.processor.tables.slice_state import read_state

    folders = _folders(args, key)
    try:
        return find_version(folders, number)
    except FileNotFoundError as e:
        state = read_state(key, folders)
        if state.error:
            raise FileNotFoundError(state.error) from e
        if state.is_published or state.progress:
            raise
        raise _no_run(args, key) from e


def _no_run(args: argparse.Namespace, key: str) -> FileNotFoundError:
    """
    :raises SliceError: when the table cannot be listed, such as one in a bucket that does not exist.
    """
    from airflow_provider_raydatallm.processor.tables.listing import find_slices

    keys = [of_slice for of_slice, _ in find_slices(args.output, args.metadata_path)]
    if not keys:
        return FileNotFoundError(_no_slice(args))
    return FileNotFoundError(
        f"no run of slice {key} left anything in {args.output}, which has {len(keys):,} slice(s), from "
        f"{keys[0]} to {keys[-1]}"
    )


def _no_slice(args: argparse.Namespace) -> str:
    metadata = f" and {args.metadata_path} its publish.metadata_path" if args.metadata_path else ""
    return f"no slice of {args.output} ever had a run: is this the task's output_path{metadata}?"


def _row_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows: give at least 1")
    return int(text)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        raise argparse.ArgumentTypeError(f"{name!r} is no timezone: give one such as Europe/Berlin") from None


def _print_json(value: Any) -> None:
    print(json.dumps(_as_json_values(value), default=str))


def _say(text: str, file: TextIO | None = None) -> None:
    """Prints lines without what a terminal obeys: texts of rows, models and others are in them."""
    print("\n".join(map(_plain, text.split("\n"))), file=file)


def _complain(text: str) -> None:
    _say(text, sys.stderr)


def _as_json_values(value: Any) -> Any:
    """With texts in place of what JSON lacks: some numbers, and bytes (Base64)."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _as_json_values(of_name) for name, of_name in value.items()}
    return [_as_json_values(item) for item in value] if isinstance(value, list | tuple) else value


def _as_json(state: SliceState) -> dict[str, Any]:
    value = {name: getattr(state, name) for name in ("key", "version", "published_at", "run", "progress")}
    report = None if state.report is None else state.report.model_dump(mode="json")
    return {**value, "report": report, "error": state.error}


def _state_cells(state: SliceState) -> tuple[str, ...]:
    key = _printable(state.key)
    if state.error is not None:
        return key, f"unreadable: {_printable(state.error)}"
    if state.report is None:
        text = progress_text(state.progress) if state.progress else "nothing is published"
        return key, f"{state.run or 'missing'}: {_printable(text.splitlines()[0])}"
    report, again = state.report, f", {state.run} again" if state.run else ""
    tokens = [n for n in (report.tokens.input, report.tokens.output) if n is not None]
    return (
        key, f"published{again}", f"{report.counts.succeeded:,}", f"{report.counts.quarantined:,}",
        _number(report.throughput.rows_per_s), _number(sum(tokens) if tokens else None),
        str(state.version), (state.published_at or "")[:19],
    )  # fmt: skip


def _as_table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; a row's last cell may be longer than its column."""
    columns = max(map(len, rows))
    widths = [max((len(r[i]) for r in rows if len(r) > i + 1), default=0) for i in range(columns)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    )


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _printable(value: Any) -> str:
    """One line without what a terminal obeys, cut."""
    text = _plain(str(value))
    return (
        text if len(text) <= _CELL_CHARACTERS else f"{text[:_CELL_CHARACTERS]}... ({len(text):,} characters)"
    )


def _plain(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)
