"""The ledger of finished rows: derived from the fragments that exist, never stored separately.

The name of a fragment that holds one range of one unit contains that range, so that a slice's ledger is one
listing; the others (`mixed`) hold their ranges in their first bytes. A slice whose rows finish in any order
has about as many ranges as rows, so they are columns of numbers, once in memory. Pure, except for
`read_ledger`.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from airflow_provider_raydatallm.processor.columns import MAX_UNIT_ROWS
from airflow_provider_raydatallm.processor.store.file_names import LAST_NUMBER
from airflow_provider_raydatallm.processor.store.spans import (
    Spans,
    count_rows,
    covered_at_least,
    intersect,
    merge_spans,
    subtract,
)

#: `rows`: answered. `invalid`, `cut`, `failed`: rows that failed for their own reasons, each time:
#: their answer was invalid, which may be corrected; or lacks its end; or anything else. `died`: rows that
#: an engine held when it died, once for each death.
FragmentKind = Literal["rows", "failed", "invalid", "cut", "died"]

_NAME = re.compile(
    r"(?:carried(?P<base>\d{6,})-)?(?P<kind>rows|failed|invalid|cut|died)"
    r"-(?:(?P<unit>[0-9a-f]{16})-(?P<first>\d+)|mixed)-(?P<count>\d+)-e(?P<epoch>\d{6,})"
    r"-(?P<sha>[0-9a-f]{16})\.arrow"
)
#: In place of the index of a unit: rows whose answers, and failures, count no more. They are asked again, or
#: the version that is taken over has them.
SET_ASIDE, SUPERSEDED = -2, -3
#: Fragments that are read at once, that are asked for at once, and by one task of a thread at most.
_THREADS, _AT_ONCE, _BATCH = 32, 4096, 16
#: Engine deaths that make the rows which it held suspects.
_SUSPECT_DEATHS = 2
#: About so many ranges are looked at together, of at most so many rows: their positions are 32-bit numbers.
_BLOCK_RANGES, _BLOCK_ROWS = 2 << 20, 1 << 30


@dataclass(frozen=True, eq=False)
class RowRanges:
    """Ranges of rows as columns of int32: the index of a unit in the plan, -1 for one of another plan,
    `SET_ASIDE` or `SUPERSEDED`, and half-open offsets in it."""

    units: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, some: Any) -> RowRanges:
        return RowRanges(self.units[some], self.starts[some], self.stops[some])


class OldRows(NamedTuple):
    """Rows of which nothing counts that runs up to an epoch wrote.

    :ivar spans: of positions, as `merge_spans` returns them.
    """

    last_epoch: int
    spans: Spans


class Pieces(NamedTuple):
    """Where rows are: ranges, in the order of their fragments, each in the fragment `numbers` of `names`,
    from that one's row `rows` on."""

    names: Sequence[str]
    numbers: np.ndarray
    ranges: RowRanges
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Fragments:
    """Fragments of one kind, sorted by name: immutable files of rows. The ranges of one, in the order of its
    rows, stop at its `ends`. Those that are `carried` hold rows of the version that this one takes over."""

    names: Sequence[str]
    epochs: np.ndarray
    carried: np.ndarray
    ranges: RowRanges
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    @property
    def rows(self) -> int:
        """Those that several hold, so many times."""
        return int((self.ranges.stops - self.ranges.starts).sum(dtype=np.int64))

    @property
    def counted_rows(self) -> int:
        """As `rows`, without those that are set aside."""
        counted = self.ranges[self.ranges.units != SET_ASIDE]
        return int((counted.stops - counted.starts).sum(dtype=np.int64))

    @property
    def run_epochs(self) -> set[int]:
        """Of the runs that wrote rows which count, without those that were taken over."""
        fragments = np.repeat(np.arange(len(self)), np.diff(self.ends, prepend=0))
        counts = np.zeros(len(self), bool)
        counts[fragments[self.ranges.units >= 0]] = True
        return set(self.epochs[counts & ~self.carried].tolist())

    def spans(self) -> Spans:
        """Of the rows' positions."""
        ranges = self.ranges[self.ranges.units >= 0]
        return merge_spans(position(ranges.units[:, None], np.column_stack([ranges.starts, ranges.stops])))

    def filter(self, chosen: np.ndarray) -> Fragments:
        """:param chosen: a bool for each fragment."""
        counts = np.diff(self.ends, prepend=0)
        names = [name for name, is_chosen in zip(self.names, chosen, strict=True) if is_chosen]
        ranges = self.ranges[np.repeat(chosen, counts)]
        return Fragments(names, self.epochs[chosen], self.carried[chosen], ranges, np.cumsum(counts[chosen]))

    def set_aside(self, old: OldRows, mark: int = SET_ASIDE) -> Fragments:
        """These, cut where rows are set aside. Published rows, which are carried, stay.

        :param mark: for the units of such rows.
        """
        ranges, edges = self.ranges, old.spans.ravel()
        is_old = (self.epochs <= old.last_epoch) & ~self.carried
        if not len(edges) or not is_old.any():
            return self
        fragments = np.repeat(np.arange(len(self)), np.diff(self.ends, prepend=0))
        counts_no_more = is_old[fragments] & (ranges.units >= 0)
        starts, stops = (position(ranges.units, offsets) for offsets in (ranges.starts, ranges.stops))
        first = np.searchsorted(edges, starts, "right")
        cuts = np.where(counts_no_more, np.searchsorted(edges, stops) - first, 0)
        if not (counts_no_more & ((first % 2 == 1) | (cuts > 0))).any():
            return self
        of = np.repeat(np.arange(len(ranges)), cuts + 1)  # the range that each piece is of
        place = np.arange(len(of)) - np.repeat(np.cumsum(cuts + 1) - (cuts + 1), cuts + 1)
        edges = np.append(edges, 0)  # is indexed, and not taken, where a piece ends as its range does
        edge = first[of] + place
        piece_starts = np.where(place > 0, edges[edge - 1], starts[of])
        piece_stops = np.where(place < cuts[of], edges[edge], stops[of])
        is_inside = counts_no_more[of] & (np.searchsorted(old.spans.ravel(), piece_starts, "right") % 2 == 1)
        cut = RowRanges(
            np.where(is_inside, mark, ranges.units[of]).astype(np.int32),
            *(unit_and_offset(column)[1].astype(np.int32) for column in (piece_starts, piece_stops)),
        )
        ends = np.cumsum(np.bincount(fragments[of], minlength=len(self)))
        return Fragments(self.names, self.epochs, self.carried, cut, ends)

    def without(self, old: Sequence[OldRows]) -> Fragments:
        """These, without rows that another version has, and without fragments that have no others."""
        found = self
        for rows in old:
            found = found.set_aside(rows, SUPERSEDED)
        if found is self:
            return self
        others = np.cumsum(np.concatenate([[0], found.ranges.units != SUPERSEDED]))
        return found.filter(np.diff(others[np.concatenate([[0], found.ends])]) > 0)

    def __add__(self, other: Fragments) -> Fragments:
        """Those of both kinds, which are not sorted together."""
        before = self.ends[-1] if len(self) else 0
        both = zip(vars(self.ranges).values(), vars(other.ranges).values(), strict=True)
        return Fragments(
            [*self.names, *other.names],
            np.concatenate([self.epochs, other.epochs]),
            np.concatenate([self.carried, other.carried]),
            RowRanges(*(np.concatenate(columns) for columns in both)),
            np.concatenate([self.ends, other.ends + before]),
        )

    def divide(self, groups: Sequence[Sequence[int]], units: int) -> Iterator[Pieces]:
        """Yields where the rows of each group of units are; units are numbered by their place in it.

        :param units: of the plan.
        """
        # [-1]: no unit; [SET_ASIDE], [SUPERSEDED]: rows that do not count
        group_of, place = np.full(units + 3, -1, np.int32), np.full(units + 3, -1, np.int32)
        for number, group in enumerate(groups):
            group_of[group], place[group] = number, np.arange(len(group))
        group_of_range = group_of[self.ranges.units]
        # Counts rows of all fragments, and may overflow: differences within a fragment are right anyhow.
        passed = (self.ranges.stops - self.ranges.starts).view(np.uint32)
        np.add.accumulate(passed, out=passed)
        for number in range(len(groups)):
            some = np.flatnonzero(group_of_range == number)
            ranges = self.ranges[some]
            fragment = np.searchsorted(self.ends, some, "right")
            first = np.concatenate([[0], self.ends[:-1]])[fragment]
            before = np.where(first > 0, passed[first - 1], 0).astype(np.uint32)
            rows = passed[some] - (ranges.stops - ranges.starts).view(np.uint32) - before
            held, numbers = np.unique(fragment, return_inverse=True)
            yield Pieces(
                [self.names[i] for i in held],
                numbers.astype(np.int32),
                RowRanges(place[ranges.units], ranges.starts, ranges.stops),
                rows.view(np.int32),
            )


@dataclass(frozen=True)
class Ledger:
    """The fragments that exist, by kind."""

    rows: Fragments
    failed: Fragments
    invalid: Fragments
    cut: Fragments
    died: Fragments

    @property
    def failures(self) -> Fragments:
        return self.failed + self.invalid + self.cut

    @property
    def outcomes(self) -> int:
        """How often rows were answered, or failed, or were held by an engine that died, where that counts."""
        return sum(of_kind.counted_rows for of_kind in vars(self).values())


@dataclass(frozen=True, eq=False)
class MissingRows:
    """Rows of a plan: (index of a unit, spans of its offsets) for each unit that has any, in plan order. The
    spans of one stop at its `ends`."""

    units: np.ndarray
    ends: np.ndarray
    spans: Spans

    @classmethod
    def join(cls, parts: Iterable[MissingRows]) -> MissingRows:
        """:param parts: in plan order; a unit, and a span of it, may go on in the next one."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls(np.empty(0, np.int32), np.empty(0, np.int64), np.empty((0, 2), np.int32))
        firsts = np.cumsum([0, *(len(part.spans) for part in parts)])
        units = np.concatenate([part.units for part in parts])
        ends = np.concatenate([part.ends + first for part, first in zip(parts, firsts, strict=False)])
        spans = np.concatenate([part.spans for part in parts])
        seams = [
            first
            for first, (one, other) in zip(firsts[1:], pairwise(parts), strict=False)
            if one.units[-1] == other.units[0] and one.spans[-1, 1] == other.spans[0, 0]
        ]
        for seam in reversed(seams):
            spans[seam - 1, 1] = spans[seam, 1]
        is_last = np.diff(units, append=-1) != 0
        return cls(
            units[is_last],
            (ends - np.searchsorted(seams, ends))[is_last],
            np.delete(spans, seams, axis=0) if seams else spans,
        )

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, i: int) -> tuple[int, Spans]:
        return int(self.units[i]), self.spans[self.ends[i - 1] if i else 0 : self.ends[i]]

    def __iter__(self) -> Iterator[tuple[int, Spans]]:
        return map(self.__getitem__, range(len(self)))

    @property
    def rows(self) -> int:
        return count_rows(self.spans)


class RowStates(NamedTuple):
    """The rows of a plan that are not answered. `suspects`: those that engines held when they died;
    `missing`: all others that are to be answered, and `repairable` those of them with an invalid answer;
    `invalid`: those of `quarantined` whose answer was invalid or cut."""

    missing: MissingRows
    suspects: MissingRows
    quarantined: MissingRows
    invalid: MissingRows
    repairable: MissingRows


def row_states(unit_rows: Sequence[int], ledger: Ledger, max_attempts: int, repair: int = 0) -> RowStates:
    """
    :param unit_rows: of the plan's units.
    :param max_attempts: failures that put a row into quarantine, unless it is answered. One that is carried
        does so by itself: its row was in quarantine.
    :param repair: how often a row with an invalid answer is asked again.
    """
    rows = np.array(unit_rows, np.int64)
    failures = (ledger.failed, ledger.invalid, ledger.cut)
    carried_failures = [kind.filter(kind.carried).ranges for kind in failures]
    ranges = sum(len(kind.ranges) for kind in vars(ledger).values())
    block_rows = min(_BLOCK_ROWS, max(1, int(rows.sum()) * _BLOCK_RANGES // max(ranges, _BLOCK_RANGES)))
    states = []
    for block in _blocks(rows, block_rows):
        answered, failed, invalid, cut, died = (
            block.positions(kind.ranges)
            for kind in (ledger.rows, ledger.failed, ledger.invalid, ledger.cut, ledger.died)
        )
        finished = merge_spans(answered)
        not_repairable = covered_at_least(np.concatenate([failed, cut]), max_attempts)
        repaired_in_vain = covered_at_least(
            np.concatenate([failed, cut, invalid]), max(max_attempts, repair + 1)
        )
        were_quarantined = [block.positions(ranges) for ranges in carried_failures]
        given_up = merge_spans(np.concatenate([not_repairable, repaired_in_vain, *were_quarantined]))
        quarantined = subtract(given_up, finished)
        of_answer = intersect(quarantined, merge_spans(np.concatenate([invalid, cut])))
        left = subtract(subtract(block.all_rows(), finished), quarantined)
        suspects = intersect(left, covered_at_least(died, _SUSPECT_DEATHS))
        missing = subtract(left, suspects)
        repairable = intersect(missing, merge_spans(invalid))
        spans_of_states = (missing, suspects, quarantined, of_answer, repairable)
        states.append([block.rows_at(spans) for spans in spans_of_states])
    return RowStates(*(MissingRows.join(state[i] for state in states) for i in range(len(RowStates._fields))))


class _Block(NamedTuple):
    """Consecutive units, or the rows of a single one from an offset on, laid end to end. A number between the
    rows of two units keeps their spans apart."""

    first: int
    offset: int
    rows: np.ndarray

    @property
    def _bases(self) -> Spans:
        bases: Spans = np.cumsum(self.rows + 1) - (self.rows + 1)
        return bases.astype(np.int32)

    def all_rows(self) -> Spans:
        return np.column_stack([self._bases, self._bases + self.rows.astype(np.int32)])

    def positions(self, ranges: RowRanges) -> Spans:
        """Those of the ranges' rows that are in this block."""
        units = ranges.units
        here = (units >= self.first) & (units < self.first + len(self.rows))
        if len(self.rows) == 1:
            here &= (ranges.stops > self.offset) & (ranges.starts < self.offset + self.rows[0])
        some = ranges[np.flatnonzero(here)]
        unit = some.units - self.first
        base, rows = self._bases[unit], self.rows.astype(np.int32)[unit]
        return np.column_stack(
            [base + np.clip(offsets - self.offset, 0, rows) for offsets in (some.starts, some.stops)]
        )

    def rows_at(self, positions: Spans) -> MissingRows:
        bases = self._bases
        ends = np.searchsorted(positions[:, 0], bases + self.rows, "right")
        counts = np.diff(ends, prepend=0)
        units = np.flatnonzero(counts)
        offsets = positions - np.repeat(bases[units] - np.int32(self.offset), counts[units])[:, None]
        return MissingRows((units + self.first).astype(np.int32), ends[units], offsets)


def _blocks(rows: np.ndarray, block_rows: int) -> Iterator[_Block]:
    ends = np.cumsum(rows + 1)
    first = 0
    while first < len(rows):
        before = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, before + block_rows, "right"))
        if last > first:
            yield _Block(first, 0, rows[first:last])
        else:
            last = first + 1
            for offset in range(0, int(rows[first]), block_rows):
                yield _Block(first, offset, np.minimum(rows[first:last] - offset, block_rows))
        first = last


def position(unit: int | np.ndarray, offset: int | np.ndarray) -> Any:
    """Orders rows by unit and offset, in 64 bits: `unit_and_offset` is the way back."""
    return (np.int64(unit) << 32) + offset


def unit_and_offset(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return positions >> 32, positions & (2**32 - 1)


def fragment_name(
    kind: FragmentKind,
    place: tuple[str, int] | None,
    rows: int,
    epoch: int,
    content: bytes,
    base: int | None = None,
) -> str:
    """
    :param place: unit and first offset of a fragment that holds one range.
    :param base: the version from which the rows are taken over, if any.
    """
    where = f"{place[0]}-{place[1]}" if place is not None else "mixed"
    carried = f"carried{base:06}-" if base is not None else ""
    return f"{carried}{kind}-{where}-{rows}-e{epoch:06}-{content_hash(content)}.arrow"


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


def answered_in_name(name: str) -> int:
    """The answered rows of a fragment, by its name; 0 for those that were taken over from a version."""
    match = _NAME.fullmatch(name)
    return int(match["count"]) if match and match["kind"] == "rows" and match["base"] is None else 0


def newest_answers(names: Iterable[str]) -> int:
    """The epoch of the newest answers among fragments, without those that were taken over; 0 for none."""
    found = filter(None, map(_NAME.fullmatch, names))
    return max((int(m["epoch"]) for m in found if m["kind"] == "rows" and m["base"] is None), default=0)


def is_carried_from(name: str, base: int) -> bool:
    """Whether the file is a fragment of rows that were taken over from this version."""
    match = _NAME.fullmatch(name)
    return match is not None and match["base"] is not None and int(match["base"]) == base


def holds_finished_rows(name: str) -> bool:
    """Whether the file is a fragment of rows that are answered or have failed."""
    match = _NAME.fullmatch(name)
    return match is not None and match["kind"] != "died"


def read_ledger(
    names: Iterable[str],
    units: Mapping[str, int],
    read_ranges: Callable[[str], RowRanges | None],
    base: int | None = None,
    *,
    retry: bool = False,
    asked_again: Sequence[OldRows] = (),
    superseded: Sequence[OldRows] = (),
) -> Ledger:
    """Returns the fragments among `names`.

    :param units: plan indices by unit id.
    :param read_ranges: reads the ranges of a mixed fragment; returns None when it is damaged.
    :param base: the version whose carried rows count; those of other versions may have other answers now.
    :param retry: whether its rows in quarantine are asked again, and so do not count.
    :param superseded: rows that count no more as they were answered by then, such as those that the version
        has: it was published instead.
    """
    by_kind: dict[str, list[re.Match[str]]] = {kind: [] for kind in get_args(FragmentKind)}
    for match in map(_NAME.fullmatch, sorted(names)):
        if match is None:
            continue
        is_of_base = match["base"] is not None and int(match["base"]) == base
        if match["base"] is None or (is_of_base and not (retry and match["kind"] != "rows")):
            by_kind[match["kind"]].append(match)
    with ThreadPoolExecutor(_THREADS) as pool:

        def read_all(names: Sequence[str]) -> Iterator[RowRanges | None]:
            # Not all at once: tasks, and results that wait for their turn, would take more memory than the
            # ledger itself.
            for start in range(0, len(names), _AT_ONCE):
                some = names[start : start + _AT_ONCE]
                size = max(1, min(_BATCH, len(some) // (4 * _THREADS)))
                batches = [some[i : i + size] for i in range(0, len(some), size)]
                yield from chain.from_iterable(
                    pool.map(lambda batch: [read_ranges(n) for n in batch], batches)
                )

        collected = {kind: _collect(of_kind, units, read_all) for kind, of_kind in by_kind.items()}
    if superseded and not all(kind.carried.all() for kind in collected.values()):
        answered = collected["rows"].filter(collected["rows"].carried).spans()
        old = [*superseded, OldRows(LAST_NUMBER, answered)]  # a published answer stays
        collected = {kind: fragments.without(old) for kind, fragments in collected.items()}
    for asked in asked_again:
        collected = {kind: fragments.set_aside(asked) for kind, fragments in collected.items()}
    return Ledger(**collected)


def _collect(
    matches: Sequence[re.Match[str]],
    units: Mapping[str, int],
    read_all: Callable[[Sequence[str]], Iterator[RowRanges | None]],
) -> Fragments:
    mixed = read_all([m.string for m in matches if m["unit"] is None])
    names: list[str] = []
    epochs, ends, carried = array("q"), array("q"), array("b")
    columns = [array("i"), array("i"), array("i")]  # grow where they lie
    for match in matches:
        if match["unit"] is None:
            ranges = next(mixed)
            if ranges is None:
                continue
            for column, values in zip(columns, (ranges.units, ranges.starts, ranges.stops), strict=True):
                column.frombytes(values.tobytes())
        else:
            first, stop = int(match["first"]), int(match["first"]) + int(match["count"])
            if not first < stop <= MAX_UNIT_ROWS:
                continue
            for column, value in zip(columns, (units.get(match["unit"], -1), first, stop), strict=True):
                column.append(value)
        names.append(match.string)
        carried.append(match["base"] is not None)
        epochs.append(min(int(match["epoch"]), 2**63 - 1))
        ends.append(len(columns[0]))
    ranges = RowRanges(*(np.frombuffer(column, np.int32) for column in columns))
    return Fragments(
        names,
        np.frombuffer(epochs, np.int64),
        np.frombuffer(carried, bool),
        ranges,
        np.frombuffer(ends, np.int64),
    )
