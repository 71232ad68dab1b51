"""The ledger of finished rows: derived from the names of the fragments that exist, never stored separately.

The name of a fragment that holds one range of one unit contains that range, so that a slice's ledger is one
listing; the others (`mixed`) hold their ranges in their first bytes. Row ranges are half-open `(start, stop)`
offsets in a unit. Pure, except for `read_ledger`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

Span = tuple[int, int]
#: Rows of a plan: the index of a unit and ranges of its rows.
MissingRows = Sequence[tuple[int, Sequence[Span]]]


class UnitRows(NamedTuple):
    """Rows of one unit, named by the unit's id."""

    unit: str
    start: int
    stop: int


#: `rows`: answered; `failed`: rows that failed for their own reasons, once for each failure.
FragmentKind = Literal["rows", "failed"]

_NAME = re.compile(
    r"(?:carried(?P<base>\d{6,})-)?(?P<kind>rows|failed)"
    r"-(?:(?P<unit>[0-9a-f]{16})-(?P<first>\d+)|mixed)-(?P<count>\d+)-e(?P<epoch>\d{6,})"
    r"-(?P<sha>[0-9a-f]{16})\.arrow"
)


@dataclass(frozen=True)
class Fragment:
    """An immutable file of finished rows. `ranges` in the order of its rows."""

    name: str
    kind: FragmentKind
    epoch: int
    ranges: tuple[UnitRows, ...]


def fragment_name(
    kind: FragmentKind, ranges: Sequence[UnitRows], epoch: int, content: bytes, base: int | None = None
) -> str:
    """:param base: the version from which the rows are taken over, if any."""
    count = sum(stop - start for _, start, stop in ranges)
    where = f"{ranges[0].unit}-{ranges[0].start}" if len(ranges) == 1 else "mixed"
    carried = f"carried{base:06}-" if base is not None else ""
    return f"{carried}{kind}-{where}-{count}-e{epoch:06}-{content_hash(content)}.arrow"


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def hash_from_name(name: str) -> str:
    """The content hash in a fragment's name."""
    match = _NAME.fullmatch(name)
    return match["sha"] if match else ""


def count_from_name(name: str) -> int:
    """The number of rows in a fragment's name."""
    match = _NAME.fullmatch(name)
    return int(match["count"]) if match else 0


def read_ledger(
    names: Iterable[str],
    read_ranges: Callable[[str], tuple[UnitRows, ...] | None],
    base: int | None = None,
) -> list[Fragment]:
    """Returns the fragments among `names`, sorted by name.

    :param read_ranges: reads the ranges of a mixed fragment; returns None when it is damaged.
    :param base: the version whose carried rows count; those of other versions may have other answers now.
    """
    fragments: dict[str, Fragment | None] = {}
    mixed: list[tuple[str, FragmentKind, int]] = []
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is None or (match["base"] is not None and int(match["base"]) != base):
            continue
        kind: FragmentKind = "rows" if match["kind"] == "rows" else "failed"
        epoch = int(match["epoch"])
        if match["unit"] is None:
            mixed.append((name, kind, epoch))
            fragments[name] = None  # keeps the order
        else:
            first = int(match["first"])
            rows = UnitRows(match["unit"], first, first + int(match["count"]))
            fragments[name] = Fragment(name, kind, epoch, (rows,))
    if mixed:
        with ThreadPoolExecutor(32) as pool:
            all_ranges = pool.map(read_ranges, (name for name, _, _ in mixed))
            for (name, kind, epoch), ranges in zip(mixed, all_ranges, strict=True):
                fragments[name] = Fragment(name, kind, epoch, ranges) if ranges is not None else None
    return [f for f in fragments.values() if f is not None]


def finished_rows(fragments: Iterable[Fragment]) -> dict[str, list[Span]]:
    """Answered rows of each unit, as sorted ranges that do not touch."""
    return {unit: merge_spans(spans) for unit, spans in _spans_by_unit(fragments, "rows").items()}


def quarantined_rows(
    fragments: Sequence[Fragment], finished: Mapping[str, Sequence[Span]], max_attempts: int
) -> dict[str, list[Span]]:
    """Rows that were never answered and failed at least `max_attempts` times."""
    quarantined = {
        unit: subtract(covered_at_least(spans, max_attempts), finished.get(unit, []))
        for unit, spans in _spans_by_unit(fragments, "failed").items()
    }
    return {unit: spans for unit, spans in quarantined.items() if spans}


def _spans_by_unit(fragments: Iterable[Fragment], kind: FragmentKind) -> dict[str, list[Span]]:
    spans: dict[str, list[Span]] = {}
    for fragment in fragments:
        if fragment.kind == kind:
            for unit, start, stop in fragment.ranges:
                spans.setdefault(unit, []).append((start, stop))
    return spans


def missing_rows(
    units: Sequence[tuple[str, int]], done: Sequence[Mapping[str, Sequence[Span]]]
) -> list[tuple[int, list[Span]]]:
    """Rows still to be answered: (index of the unit, its ranges) for each unit that has any.

    :param units: (id, rows) in plan order.
    :param done: sorted ranges by unit that need no answer.
    """
    missing = []
    for index, (unit, rows) in enumerate(units):
        spans: list[Span] = [(0, rows)]
        for ranges in done:
            if unit in ranges:
                spans = subtract(spans, ranges[unit])
        if spans:
            missing.append((index, spans))
    return missing


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Sorted ranges that neither overlap nor touch and cover the same rows."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        elif start < stop:
            result.append((start, stop))
    return result


def covered_at_least(spans: Iterable[Span], times: int) -> list[Span]:
    """Ranges that at least `times` of the spans cover."""
    edges = sorted(edge for start, stop in spans for edge in ((start, 1), (stop, -1)))
    result: list[Span] = []
    depth = begin = 0
    for at, step in edges:
        if depth >= times > depth + step:
            result.append((begin, at))
        elif depth < times <= depth + step:
            begin = at
        depth += step
    return merge_spans(result)


def subtract(spans: Iterable[Span], taken: Sequence[Span]) -> list[Span]:
    """`spans` less `taken`; both sorted and free of overlaps."""
    result: list[Span] = []
    at = 0
    for start, stop in spans:
        while at < len(taken) and taken[at][1] <= start:
            at += 1
        i = at
        while i < len(taken) and taken[i][0] < stop:
            if taken[i][0] > start:
                result.append((start, taken[i][0]))
            start = max(start, taken[i][1])
            i += 1
        if start < stop:
            result.append((start, stop))
    return result


def count_rows(spans: Iterable[Span]) -> int:
    return sum(stop - start for start, stop in spans)
