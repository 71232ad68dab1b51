"""What is finished and what is missing, against sets of single rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raydatallm.processor.store import ledger

A, B = "a" * 16, "b" * 16

spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def rows(of: Iterable[ledger.Span]) -> set[int]:
    return {i for start, stop in of for i in range(start, stop)}


@given(spans)
def test_merged_covers_the_same_in_separate_ranges(given: list[ledger.Span]) -> None:
    result = ledger.merge_spans(given)
    assert rows(result) == rows(given)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(result))
    assert ledger.count_rows(result) == len(rows(given))


@given(spans, spans)
def test_without_is_the_difference(one: list[ledger.Span], other: list[ledger.Span]) -> None:
    assert rows(ledger.subtract(ledger.merge_spans(one), ledger.merge_spans(other))) == rows(one) - rows(
        other
    )


@given(spans, st.integers(1, 4))
def test_covered_counts_how_often_a_row_is_there(given: list[ledger.Span], times: int) -> None:
    wanted = {i for i in rows(given) if sum(a <= i < b for a, b in given) >= times}
    assert rows(ledger.covered_at_least(given, times)) == wanted


@given(spans, spans, st.integers(1, 60), st.integers(1, 3))
def test_every_row_is_finished_quarantined_or_missing_and_never_two_of_them(
    answered: list[ledger.Span], failed: list[ledger.Span], size: int, attempts: int
) -> None:
    fragments = [
        ledger.Fragment(f"{kind}{i}", kind, 1, (ledger.UnitRows(A, min(a, size), min(b, size)),))
        for kind, given in (("rows", answered), ("failed", failed))
        for i, (a, b) in enumerate(given)
    ]
    finished = ledger.finished_rows(fragments)
    quarantined = ledger.quarantined_rows(fragments, finished, attempts)
    missing = ledger.missing_rows([(A, size), (B, 3)], [finished, quarantined])
    sets = [rows(finished.get(A, [])), rows(quarantined.get(A, []))]
    sets.append(rows(dict(missing).get(0, [])))
    assert set().union(*sets) == set(range(size))
    assert sum(map(len, sets)) == size
    assert dict(missing)[1] == [(0, 3)]
    assert sets[0] == {i for i in rows(answered) if i < size}


def test_names_say_which_rows_a_fragment_holds() -> None:
    whole = ledger.fragment_name("rows", [ledger.UnitRows(A, 7, 9)], 3, b"content")
    holes = ledger.fragment_name("rows", [ledger.UnitRows(A, 7, 9), ledger.UnitRows(B, 0, 1)], 12, b"other")
    failed = ledger.fragment_name("failed", [ledger.UnitRows(B, 1, 2)], 3, b"content")
    assert whole.startswith(f"rows-{A}-7-2-e000003-")
    assert len(ledger.hash_from_name(whole)) == 16
    looked: list[str] = []

    def look(name: str) -> tuple[ledger.UnitRows, ...]:
        looked.append(name)
        return (ledger.UnitRows(A, 7, 9), ledger.UnitRows(B, 0, 1))

    names = [
        whole,
        holes,
        failed,
        "plan-0.json",
        "carried-over-1.json",
        "_damaged-1-" + whole,
        whole + ".tmp",
    ]
    found = ledger.read_ledger(names, look)
    assert looked == [holes]
    assert {(f.name, f.kind, f.ranges) for f in found} == {
        (whole, "rows", (ledger.UnitRows(A, 7, 9),)),
        (holes, "rows", (ledger.UnitRows(A, 7, 9), ledger.UnitRows(B, 0, 1))),
        (failed, "failed", (ledger.UnitRows(B, 1, 2),)),
    }
    assert [f.name for f in found] == sorted(f.name for f in found)


def test_fragment_that_cannot_be_read_holds_nothing() -> None:
    holes = ledger.fragment_name("rows", [ledger.UnitRows(A, 7, 9), ledger.UnitRows(B, 0, 1)], 12, b"other")
    assert ledger.read_ledger([holes], lambda name: None) == []


def test_rows_taken_over_count_for_the_version_that_they_are_of() -> None:
    rows = [ledger.UnitRows(A, 7, 9)]
    own = ledger.fragment_name("rows", rows, 3, b"content")
    carried = {base: ledger.fragment_name("rows", rows, 3, b"content", base) for base in (1, 1_000_002)}
    names = [own, *carried.values()]
    assert [f.name for f in ledger.read_ledger(names, lambda name: ())] == [own]
    for base, name in carried.items():
        assert {f.name for f in ledger.read_ledger(names, lambda name: (), base)} == {own, name}
        assert (ledger.count_from_name(name), len(ledger.hash_from_name(name))) == (2, 16)
    assert [f.name for f in ledger.read_ledger(names, lambda name: (), 3)] == [own]


@pytest.mark.parametrize("name", ["rows.arrow", "rows-xyz-1-1-e000001-0.arrow", "plan-0123456789abcdef.json"])
def test_other_files_are_no_fragments(name: str) -> None:
    assert ledger.read_ledger([name], lambda name: ()) == []
