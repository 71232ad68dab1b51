"""What commands print of a slice: its state as JSON, as a line of a table, and whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.log.progress_text import progress_text, result_lines
from airflow_provider_raydatallm.processor.commands.printing import cell_text, failure_lines, number_text
from airflow_provider_raydatallm.processor.commands.version_commands import staged_text, why_held

if TYPE_CHECKING:
    from airflow_provider_raydatallm.contract.result.report import Report
    from airflow_provider_raydatallm.processor.store.versions import Version
    from airflow_provider_raydatallm.processor.tables.slice_state import SliceState

HELD_TITLES = ("slice", "waits since", "staged", "why")
STATE_TITLES = ("slice", "state", "rows", "quarantined", "rows/s", "tokens", "version", "published")


def state_json(state: SliceState) -> dict[str, Any]:
    """`failure`: why the slice cannot be read, or why its last run published nothing."""
    names = ("key", "version", "published_at", "run", "progress", "staged")
    failure = state.failure or state.run_failure
    return {
        **{name: getattr(state, name) for name in names},
        "report": None if state.report is None else state.report.model_dump(mode="json"),
        "failure": None if failure is None else failure.to_json(),
    }


def held_json(state: SliceState) -> list[dict[str, Any]]:
    """The staged versions of a slice that wait for a person, and what cannot be read: it may be one."""
    if state.failure is not None and not state.staged:
        return [{"key": state.key, "staged": None, "failure": state.failure.to_json()}]
    return [
        {"key": state.key, **staged}
        for staged in state.staged
        if staged["held_by"] is not None or staged["fingerprint"] is None
    ]


def held_cells(state: SliceState) -> list[tuple[str, ...]]:
    """As `held_json`."""
    if state.failure is not None and not state.staged:
        return [state_cells(state)]
    return [
        (cell_text(state.key), cell_text(one["staged_at"] or "-"), cell_text(one["staged"]), why_held(one))
        for one in held_json(state)
    ]


def state_cells(state: SliceState) -> tuple[str, ...]:
    key = cell_text(state.key)
    if state.failure is not None:
        return key, f"unreadable: {cell_text(state.failure.text)}"
    if state.report is None:
        return key, _unpublished(state)
    report, again = state.report, f", {state.run} again" if state.run else ""
    tokens = [n for n in (report.tokens.input, report.tokens.output) if n is not None]
    return (
        key, f"published{again}", f"{report.counts.succeeded:,}", f"{report.counts.quarantined:,}",
        number_text(report.throughput.rows_per_s), number_text(sum(tokens) if tokens else None),
        str(state.version), cell_text(str(state.published_at or "")[:19]), *_notes(state),
    )  # fmt: skip


def _unpublished(state: SliceState) -> str:
    if state.progress is None:
        return next(iter(_notes(state)), "nothing is published, and no run left a reason here")
    if state.run == "failed":
        return next(_notes(state))
    obstacle = f"; {state.obstacle}" if state.obstacle else ""
    return f"{state.run}: {cell_text(progress_text(state.progress).splitlines()[0])}{obstacle}"


def _notes(state: SliceState) -> Iterator[str]:
    """What is there beside the published version, in a cell."""
    if state.run == "failed" and (failure := state.run_failure) is not None:
        yield f"failed: {cell_text(failure.sentence)}"
    if state.staged:
        names = ", ".join(str(one["staged"]) for one in state.staged)
        yield f"staged: {cell_text(names)}"


def state_lines(state: SliceState, kept: Sequence[Version]) -> Iterator[str]:
    """All that is known of a slice that can be read.

    :param kept: its versions.
    """
    if state.progress is not None:
        yield from _run_lines(state, state.progress)
    yield from map(staged_text, state.staged)
    if state.report is not None:
        yield from _report_lines(state.report)
        yield "versions: " + ", ".join(f"{v.number} ({v.body.get('published_at')})" for v in kept)
    else:
        yield "nothing is published"


def _run_lines(state: SliceState, progress: dict[str, Any]) -> Iterator[str]:
    failure, when = state.run_failure, progress["when"]
    if failure is None or state.run == "stopped":
        yield from f"{state.run}, {when}: {progress_text(progress)}".split("\n")
    if failure is not None:
        first, *others = failure_lines(failure)
        yield f"the run failed at {when}: {first}" if state.run == "failed" else first
        yield from others


def _report_lines(report: Report) -> Iterator[str]:
    yield from result_lines(report)
    for section in ("counts", "tokens", "seconds", "throughput", "utilisation", "cost"):
        figures = getattr(report, section)
        values = figures.model_dump(exclude_none=True, exclude={"start"}) if figures is not None else {}
        yield f"{section}: " + (", ".join(f"{k} {v:,}" for k, v in values.items()) or "not measured")


def as_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns; a row's last cell may be longer than its column."""
    columns = max(map(len, rows))
    widths = [max((len(r[i]) for r in rows if len(r) > i + 1), default=0) for i in range(columns)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]
