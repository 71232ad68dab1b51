"""What is finished and what is missing, against sets of single rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.processor.store import ledger, spans
from airflow_provider_raydatallm.processor.store.ledger import FragmentKind, Ledger, RowRanges

A, B, C = "a" * 16, "b" * 16, "c" * 16
UNITS = {A: 0, B: 1}
Span = tuple[int, int]

some_spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def array(of: Sequence[Span]) -> spans.Spans:
    return np.array(of, np.int32).reshape(-1, 2)


def rows(of: Iterable[Span]) -> set[int]:
    return {i for start, stop in of for i in range(start, stop)}


def separate(result: spans.Spans) -> set[int]:
    """The rows of a result, which is in order and in as few spans as can be."""
    assert result.dtype == np.int32
    assert all(start < stop for start, stop in result)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(result))
    assert spans.count_rows(result) == len(rows(result))
    return rows(result)


@given(some_spans, some_spans)
def test_spans_are_sets_of_rows(given: list[Span], others: list[Span]) -> None:
    one, other = (spans.merge_spans(array(of)) for of in (given, others))
    assert separate(one) == rows(given)
    assert separate(spans.subtract(one, other)) == rows(given) - rows(others)
    assert separate(spans.intersect(one, other)) == rows(given) & rows(others)


@given(some_spans, st.integers(1, 4))
def test_covered_counts_how_often_a_row_is_there(given: list[Span], times: int) -> None:
    wanted = {i for i in rows(given) if sum(a <= i < b for a, b in given) >= times}
    assert separate(spans.covered_at_least(array(given), times)) == wanted


def ranges(of: Sequence[tuple[int, int, int]]) -> RowRanges:
    """:param of: unit, start, stop."""
    return RowRanges(*np.array(of, np.int32).reshape(-1, 3).T)


def ledger_of(
    fragments: Sequence[tuple[FragmentKind, int, Sequence[tuple[int, int, int]]]],
    carried: Sequence[tuple[FragmentKind, Sequence[tuple[int, int, int]]]] = (),
    *,
    retry: bool = False,
) -> Ledger:
    """
    :param fragments: kind, epoch and ranges of each.
    :param carried: kind and ranges of each, of version 1.
    """
    by_name = {
        f"{kind}-mixed-1-e{epoch:06}-{i:016x}.arrow": of for i, (kind, epoch, of) in enumerate(fragments)
    } | {f"carried000001-{kind}-mixed-1-e000001-{i:016x}.arrow": of for i, (kind, of) in enumerate(carried)}
    return ledger.read_ledger(by_name, UNITS, lambda name: ranges(by_name[name]), 1, retry=retry)


#: Ranges of two units of a plan, and of one of another plan.
one_range = st.tuples(st.integers(-1, 1), st.integers(0, 30), st.integers(1, 12))
some_ranges = st.lists(one_range.map(lambda r: (r[0], r[1], r[1] + r[2])), max_size=5)
some_fragments = st.lists(
    st.tuples(st.sampled_from(get_args(FragmentKind)), st.just(1), some_ranges), max_size=8
)
some_sizes = st.tuples(st.integers(1, 40), st.integers(1, 9))
#: Ranges and rows that are looked at together.
some_blocks = st.sampled_from([(2 << 20, 1 << 30), (1, 1 << 30), (2 << 20, 7)])


some_carried = st.lists(
    st.tuples(st.sampled_from(["rows", "failed", "invalid", "cut"]), some_ranges), max_size=3
)


@pytest.mark.slow
@settings(deadline=None)
@given(
    some_blocks, some_fragments, some_carried, some_sizes, st.integers(1, 3), st.integers(0, 2), st.booleans()
)  # fmt: skip
def test_every_row_is_finished_quarantined_or_missing_and_never_two_of_them(
    block: tuple[int, int], fragments: list[tuple[FragmentKind, int, list[tuple[int, int, int]]]],
    carried: list[tuple[FragmentKind, list[tuple[int, int, int]]]], sizes: tuple[int, int], attempts: int,
    repair: int, retry: bool,
) -> None:  # fmt: skip
    times: dict[str, Counter[tuple[int, int]]] = {kind: Counter() for kind in get_args(FragmentKind)}
    counted = [(kind, of) for kind, of in carried if kind == "rows" or not retry]
    for kind, of in [*((kind, of) for kind, _, of in fragments), *counted]:
        for unit, start, stop in of:
            times[kind].update((unit, i) for i in range(start, stop))
    given_up = {
        (unit, i)
        for kind, of in counted
        if kind != "rows"
        for unit, start, stop in of
        for i in range(start, stop)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_BLOCK_RANGES", block[0])
        patch.setattr(ledger, "_BLOCK_ROWS", block[1])
        states = ledger.row_states(sizes, ledger_of(fragments, carried, retry=retry), attempts, repair)
    left = {(unit, i) for unit, size in enumerate(sizes) for i in range(size)} - set(times["rows"])
    final = times["failed"] + times["cut"]
    quarantined = {
        row
        for row in left
        if row in given_up
        or final[row] >= attempts
        or (final + times["invalid"])[row] >= max(attempts, repair + 1)
    }
    invalid = {row for row in quarantined if times["invalid"][row] or times["cut"][row]}
    suspects = {row for row in left - quarantined if times["died"][row] >= 2}
    missing = left - quarantined - suspects
    repairable = {row for row in missing if times["invalid"][row]}
    wanted = (missing, suspects, quarantined, invalid, repairable)
    for state, expected in zip(states, wanted, strict=True):
        assert {(unit, i) for unit, of_unit in state for i in separate(of_unit)} == expected
        assert (state.rows, bool(state)) == (len(expected), bool(expected))
        assert [unit for unit, _ in state] == sorted({unit for unit, _ in expected})


def test_names_say_which_rows_a_fragment_holds() -> None:
    whole = ledger.fragment_name("rows", (A, 7), 2, 3, b"content")
    holes = ledger.fragment_name("rows", None, 3, 12, b"other")
    failed = ledger.fragment_name("failed", (B, 1), 1, 3, b"content")
    died = ledger.fragment_name("died", (C, 0), 4, 3, b"content")
    assert whole.startswith(f"rows-{A}-7-2-e000003-")
    assert len(ledger.hash_from_name(whole)) == 16
    assert [ledger.holds_finished_rows(n) for n in (whole, holes, failed, died, "plan-0.json")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    read: list[str] = []

    def read_ranges(name: str) -> RowRanges:
        read.append(name)
        return ranges([(0, 7, 9), (1, 0, 1)])

    others = ["plan-0.json", "carried-over-1.json", "_damaged-1-" + whole, whole + ".tmp"]
    result = ledger.read_ledger([whole, holes, failed, died, *others], UNITS, read_ranges)
    assert read == [holes]
    assert sum(map(len, vars(result).values())) == 4
    by_name = {
        name: [tuple(map(int, r)) for r in zip(*vars(of.ranges[start:stop]).values(), strict=True)]
        for of in (result.rows, result.failed, result.died)
        for name, start, stop in zip(of.names, [0, *of.ends], of.ends, strict=False)
    }
    assert by_name == {
        whole: [(0, 7, 9)], holes: [(0, 7, 9), (1, 0, 1)], failed: [(1, 1, 2)], died: [(-1, 0, 4)],
    }  # fmt: skip
    assert result.rows.names == sorted([whole, holes])
    assert dict(zip(result.rows.names, result.rows.epochs, strict=True)) == {whole: 3, holes: 12}


def test_fragment_that_cannot_be_read_holds_nothing() -> None:
    holes = ledger.fragment_name("rows", None, 3, 12, b"other")
    beyond = ledger.fragment_name("rows", (A, 2**31), 1, 1, b"content")
    assert ledger.read_ledger([holes, beyond], UNITS, lambda name: None).outcomes == 0


def test_rows_taken_over_count_for_the_version_that_they_are_of() -> None:
    own = ledger.fragment_name("rows", (A, 7), 2, 3, b"content")
    carried = {base: ledger.fragment_name("rows", (A, 7), 2, 3, b"content", base) for base in (1, 1_000_002)}

    def names(base: int | None) -> set[str]:
        return set(ledger.read_ledger([own, *carried.values()], UNITS, lambda name: None, base).rows.names)

    assert names(None) == names(3) == {own}
    for base, name in carried.items():
        assert names(base) == {own, name}
        assert (ledger.count_from_name(name), len(ledger.hash_from_name(name))) == (2, 16)


@pytest.mark.parametrize("name", ["rows.arrow", "rows-xyz-1-1-e000001-0.arrow", "plan-0123456789abcdef.json"])
def test_other_files_are_no_fragments(name: str) -> None:
    assert ledger.read_ledger([name], UNITS, lambda name: ranges([(0, 0, 1)])).outcomes == 0


@pytest.mark.slow
@settings(deadline=None)
@given(some_fragments, st.lists(st.integers(0, 2), min_size=2, max_size=2))
def test_parts_get_the_ranges_of_their_units(
    fragments: list[tuple[FragmentKind, int, list[tuple[int, int, int]]]], group_of: list[int]
) -> None:
    groups = [[unit for unit in (0, 1) if group_of[unit] == group] for group in range(3)]
    of_kind = ledger_of([("rows", 1, of) for _, _, of in fragments]).rows
    wanted: list[set[tuple[str, int, int, int, int]]] = [set(), set(), set()]
    for number, name in enumerate(of_kind.names):
        row = 0
        for i in range(of_kind.ends[number - 1] if number else 0, of_kind.ends[number]):
            unit, start, stop = (int(column[i]) for column in vars(of_kind.ranges).values())
            if unit >= 0:
                group = group_of[unit]
                wanted[group].add((name, groups[group].index(unit), start, stop, row))
            row += stop - start
    for pieces, expected in zip(of_kind.divide(groups, 2), wanted, strict=True):
        columns = [column.tolist() for column in (*vars(pieces.ranges).values(), pieces.rows)]
        assert {*zip([pieces.names[i] for i in pieces.numbers], *columns, strict=True)} == expected
        assert {*pieces.names} == {name for name, *_ in expected}


def test_failures_of_earlier_epochs_can_be_left_out() -> None:
    failed = ledger_of([("failed", 1, [(0, 0, 3), (1, 2, 4)]), ("failed", 2, [(0, 1, 2)])]).failed
    late = failed.filter(failed.epochs >= 2)
    assert (len(late), late.ranges.starts.tolist(), late.ends.tolist()) == (1, [1], [1])
    only = replace(ledger_of([]), failed=late)
    assert [of.tolist() for _, of in ledger.row_states([4], only, 1).quarantined] == [[[1, 2]]]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.just("rows"), st.integers(1, 3), some_ranges), min_size=1, max_size=6),
    some_ranges, some_spans, some_spans,
)  # fmt: skip
def test_rows_that_are_asked_again_count_only_as_later_runs_answered_them(
    fragments: list[tuple[FragmentKind, int, list[tuple[int, int, int]]]],
    carried: list[tuple[int, int, int]],
    first: list[Span],
    second: list[Span],
) -> None:
    asked = {0: first, 1: second}
    spans_of = [ledger.position(unit, np.array(of, np.int64).reshape(-1, 2)) for unit, of in asked.items()]
    again = ledger.OldRows(2, spans.merge_spans(np.concatenate(spans_of)))
    before = ledger_of(fragments, [("rows", carried)]).rows
    after = before.set_aside(again)
    assert (after.names, len(after.ends)) == (before.names, len(before.ends))
    for number, name in enumerate(before.names):
        is_old = before.epochs[number] <= 2 and not before.carried[number]
        was, now = (rows_of(of, number) for of in (before, after))
        assert now == [
            (ledger.SET_ASIDE if is_old and unit >= 0 and row in rows(asked[unit]) else unit, row)
            for unit, row in was
        ], name


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.just("rows"), st.integers(1, 3), some_ranges), min_size=1, max_size=6),
    some_ranges, some_spans, some_spans,
)  # fmt: skip
def test_rows_that_another_version_has_count_no_more_and_no_fragment_of_them_alone_is_left(
    fragments: list[tuple[FragmentKind, int, list[tuple[int, int, int]]]],
    carried: list[tuple[int, int, int]],
    first: list[Span],
    second: list[Span],
) -> None:
    has = {0: first, 1: second}
    spans_of = [ledger.position(unit, np.array(of, np.int64).reshape(-1, 2)) for unit, of in has.items()]
    old = ledger.OldRows(2, spans.merge_spans(np.concatenate(spans_of)))
    before = ledger_of(fragments, [("rows", carried)]).rows
    after = before.without([old])
    marked = before.set_aside(old, ledger.SUPERSEDED)
    wanted = {name: rows_of(marked, number) for number, name in enumerate(before.names)}
    left = {name: of for name, of in wanted.items() if {unit for unit, _ in of} - {ledger.SUPERSEDED}}
    found = {name: rows_of(after, number) for number, name in enumerate(after.names)}
    assert found == (left if marked is not before else wanted)


def rows_of(fragments: ledger.Fragments, number: int) -> list[tuple[int, int]]:
    """The rows of a fragment, in their order."""
    some = slice(fragments.ends[number - 1] if number else 0, fragments.ends[number])
    columns = (column[some].tolist() for column in vars(fragments.ranges).values())
    return [(unit, row) for unit, start, stop in zip(*columns, strict=True) for row in range(start, stop)]
