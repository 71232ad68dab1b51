"""Gates over what slices count, against values that are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from airflow_provider_raydatallm.contract.result.probes import GoldenFigures
from airflow_provider_raydatallm.contract.spec.gate import Gate
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.gates.verdicts import judge


def facts(
    rows: int = 100, labels: dict[str, int] | None = None, tokens: int | None = None, **counts: int | None
) -> Facts:
    counted = {"planned": rows, "succeeded": rows, **counts}
    return Facts.of_commit({"report": {"counts": counted, "labels": labels, "tokens": {"output": tokens}}})


def verdict(gate: dict[str, Any], now: Facts, *before: Facts) -> tuple[str, float | None]:
    one = judge(Gate(**gate), now, before)
    return one.verdict, one.value if one.value is None else round(one.value, 4)


@pytest.mark.parametrize(
    ("gate", "now", "expected"),
    [
        ({"of": "truncated", "max": 0.02}, facts(truncated=2), ("passed", 0.02)),
        ({"of": "truncated", "max": 0.02}, facts(truncated=3), ("failed", 0.03)),
        ({"of": "truncated", "max": 0.02, "then": "warn"}, facts(truncated=3), ("warned", 0.03)),
        ({"of": "truncated", "max": 0.02}, facts(truncated=None), ("unknown", None)),
        ({"of": "quarantined", "max": 0}, facts(0, quarantined=0), ("passed", 0.0)),
        ({"of": "rows", "min": 50}, facts(49), ("failed", 49.0)),
        ({"of": "label:x", "min": 0.1, "max": 0.5}, facts(labels={"x": 60, "y": 40}), ("failed", 0.6)),
        ({"of": "label:z", "min": 0.1}, facts(labels={"x": 60, "y": 40}), ("failed", 0.0)),
        ({"of": "top_label", "max": 0.9}, facts(labels={"x": 98, "y": 2}), ("failed", 0.98)),
        ({"of": "top_label", "max": 0.9}, facts(), ("unknown", None)),
        ({"of": "output_tokens", "min": 3}, facts(tokens=500, deduplicated=40, cached=10), ("passed", 10.0)),
        ({"of": "output_tokens", "min": 3}, facts(tokens=200), ("failed", 2.0)),
        ({"of": "output_tokens", "min": 3}, facts(tokens=500, uncounted=1), ("unknown", None)),
        ({"of": "output_tokens", "min": 3}, facts(tokens=5, deduplicated=100), ("unknown", None)),
        ({"of": "output_tokens", "min": 3}, facts(), ("unknown", None)),
    ],
)
def test_figure_is_judged_by_its_limits(
    gate: dict[str, Any], now: Facts, expected: tuple[str, float | None]
) -> None:
    assert verdict(gate, now) == expected


@pytest.mark.parametrize(
    ("gate", "now", "before", "expected"),
    [
        ({"of": "rows", "min": 0.5}, facts(40), [100, 80, 120], ("failed", 0.4)),
        ({"of": "rows", "max": 2}, facts(150), [100, 80, 120], ("passed", 1.5)),
        ({"of": "rows", "max": 2}, facts(150), [100, 80], ("unknown", None)),
        ({"of": "rows", "max": 2}, facts(150), [0, 0, 0], ("failed", None)),
        ({"of": "rows", "max": 2, "then": "warn"}, facts(150), [0, 0, 9], ("warned", None)),
        ({"of": "rows", "min": 2}, facts(150), [0, 0, 0], ("passed", None)),
        ({"of": "rows", "max": 2}, facts(0), [0, 0, 0], ("passed", 1)),
    ],
)
def test_rows_are_compared_with_the_median_of_slices_before(
    gate: dict[str, Any], now: Facts, before: list[int], expected: tuple[str, float | None]
) -> None:
    assert verdict({**gate, "against": 7}, now, *map(facts, before)) == expected


def test_cost_is_a_number_and_not_known_without_a_price() -> None:
    def slice_of(cost: Any) -> Facts:
        return Facts.of_commit({"report": {"counts": {"planned": 10, "succeeded": 10}, "cost": cost}})

    def at(total: float, each: float | None) -> Facts:
        return slice_of({"total": total, "per_1000_rows": each, "per_million_tokens": None})

    limit = {"of": "cost", "max": 20.0}
    assert [verdict(limit, one)[0] for one in (at(20, 2), at(20.5, 2), slice_of(None), facts())] == [
        "passed", "failed", "unknown", "unknown",
    ]  # fmt: skip
    assert verdict({"of": "cost_per_1000_rows", "max": 3}, at(99, 3.5)) == ("failed", 3.5)
    assert verdict({"of": "cost_per_1000_rows", "max": 3}, at(99, None)) == ("unknown", None)
    usual = [at(10, 1), slice_of(None), at(12, 1), at(11, 1)]
    assert verdict({"of": "cost", "max": 2, "against": 7}, at(33, 1), *usual) == ("failed", 3.0)
    for wrong in ({"total": "20"}, {"total": -1.0}, {"total": float("nan")}, [20]):
        with pytest.raises(ValidationError):
            slice_of(wrong)


def test_labels_moved_by_their_total_variation() -> None:
    before = [
        facts(labels={"x": 60, "y": 40}),
        facts(labels={"x": 70, "y": 30}),
        facts(labels={"x": 65, "y": 35}),
    ]
    gate = {"of": "labels", "max": 0.2, "against": 3}
    assert verdict(gate, facts(labels={"x": 98, "y": 2}), *before) == ("failed", 0.33)
    assert verdict(gate, facts(labels={"x": 60, "y": 35, "z": 5}), *before) == ("passed", 0.05)
    assert verdict(gate, facts(1, labels={"z": 1}), *before) == ("failed", 1.0)


def test_labels_of_rows_with_several_moved_though_their_proportions_stay() -> None:
    before = [facts(labels={"x": 80, "y": 80})] * 3
    gate = {"of": "labels", "max": 0.2, "against": 3}
    assert verdict(gate, facts(labels={"x": 80, "y": 70}), *before) == ("passed", pytest.approx(0.05))
    assert verdict(gate, facts(labels={"x": 40, "y": 40}), *before) == ("failed", pytest.approx(0.4))
    assert verdict(gate, facts(labels=dict.fromkeys("abc", 100)), *before) == ("failed", 1.0)
    none = Facts.of_commit({"report": {"counts": {"planned": 9, "succeeded": 9}}, "labels": {}})
    assert verdict(gate, none, *before) == ("failed", pytest.approx(0.8))
    assert verdict(gate, none, none, none, none) == ("unknown", None)
    assert verdict(gate, facts(0), *before) == ("unknown", None)


def spread(*values: float) -> Facts:
    counted = {str(value): rows for value, rows in Counter(values).items()}
    body = {"report": {"counts": {"planned": len(values), "succeeded": len(values)}}}
    return Facts.of_commit({**body, "spreads": {"n": counted}})


def test_median_is_of_all_rows_and_its_change_a_ratio() -> None:
    assert verdict({"of": "median:n", "max": 4}, spread(1, 9, 4, 7, 2)) == ("passed", 4)
    before = [spread(1, 2, 3), spread(2, 2), spread(9, 3)]
    assert verdict({"of": "median:n", "max": 2, "against": 7}, spread(5), *before) == ("failed", 2.5)
    assert verdict({"of": "median:n", "max": 2}, facts()) == ("unknown", None)


def test_spread_moved_by_the_stability_index_over_tenths() -> None:
    rng = np.random.default_rng(3)
    before, same, moved = rng.integers(0, 99, 900), rng.integers(0, 99, 400), rng.integers(0, 99, 400) // 2
    slices = [spread(*before[start : start + 300].tolist()) for start in (0, 300, 600)]
    edges = np.unique(np.quantile(before, np.arange(1, 10) / 10, method="inverted_cdf"))

    def shares(values: np.ndarray) -> np.ndarray:
        rows = np.bincount(np.searchsorted(edges, values), minlength=10)
        return (rows + 0.5) / (len(values) + 5)

    for now, least, most in ((same, 0, 0.1), (moved, 0.25, 9)):
        p, q = shares(now), shares(before)
        expected = float(np.sum((p - q) * np.log(p / q)))
        assert least <= expected <= most
        _, value = verdict({"of": "spread:n", "max": 1, "against": 3}, spread(*now.tolist()), *slices)
        assert value == pytest.approx(expected, abs=1e-4)


def test_spread_of_one_value_is_told_from_another() -> None:
    before = [spread(*[5] * 50)] * 3
    assert verdict({"of": "spread:n", "max": 0.2, "against": 3}, spread(*[5] * 50), *before)[0] == "passed"
    for other in (4, 6):
        now = spread(*[other] * 50)
        assert verdict({"of": "spread:n", "max": 0.2, "against": 3}, now, *before)[0] == "failed", other
    assert verdict({"of": "spread:n", "max": 0.2, "against": 3}, facts(), *before) == ("unknown", None)
    two = [spread(*[5, 9] * 50)] * 3
    assert verdict({"of": "spread:n", "max": 0.2, "against": 3}, spread(*[5, 7] * 50), *two)[0] == "failed"


def test_slices_that_do_not_tell_the_figure_are_none_that_it_is_compared_with() -> None:
    empty, usual = facts(0), facts(labels={"x": 60, "y": 40})
    for of in ("labels", "label:x", "top_label"):
        gate = {"of": of, "max": 0.1, "against": 4}
        assert verdict(gate, facts(labels={"x": 99, "y": 1}), empty, usual, empty, usual) == ("unknown", None)
        assert verdict(gate, facts(labels={"x": 99, "y": 1}), empty, *[usual] * 3)[0] == "failed"
        assert verdict(gate, empty, *[usual] * 4) == ("unknown", None)


def test_label_that_a_full_report_does_not_name_may_have_any_share() -> None:
    named = {f"label {n}": 1 for n in range(50)}
    assert verdict({"of": "label:x", "max": 0.1}, facts(50, named)) == ("unknown", None)
    assert verdict({"of": "label:label 7", "max": 0.1}, facts(50, named)) == ("passed", 0.02)


@pytest.mark.parametrize(
    ("gate", "now", "says"),
    [
        ({"of": "rows", "min": 2_000_000}, facts(1_234_567), "rows is 1,234,567, below min 2,000,000"),
        ({"of": "truncated", "max": 0.02}, facts(truncated=3), "truncated is 0.03, above max 0.02"),
        ({"of": "rows", "min": 1, "against": 7}, facts(), "rows against 0 slice(s) is not known"),
    ],
)
def test_verdict_says_value_and_limit(gate: dict[str, Any], now: Facts, says: str) -> None:
    one = judge(Gate(**gate), now, [])
    assert str(one) == says


def test_ratio_to_nothing_is_told_as_the_figure() -> None:
    one = judge(Gate(of="rows", max=2, against=3), facts(1500), [facts(0)] * 3)
    assert str(one) == "rows against 3 slice(s) is 1,500, and their median 0"


@pytest.mark.parametrize("limit", [{"max": 2}, {"min": 0.5}])
def test_number_of_another_sign_than_the_median_is_beyond_every_limit(limit: dict[str, float]) -> None:
    def says(number: float) -> Facts:
        return replace(facts(), checks={"checks:mean": number})

    gate = {"of": "checks:mean", "against": 3, **limit}
    assert verdict(gate, says(-500), *[says(0)] * 3) == ("failed", None)
    assert verdict(gate, says(500), *[says(-1)] * 3) == ("failed", -500)
    assert verdict(gate, says(-2), *[says(-2)] * 3) == ("passed", 1)


def golden(accuracy: float, of: str = "a") -> Facts:
    """With so many golden rows right, of a file."""
    figures = GoldenFigures(
        hash=of * 16, columns=("answer",), rows=100, correct=round(100 * accuracy), accuracy=accuracy,
        low=0, high=1,
    )  # fmt: skip
    counts = {"planned": 9, "succeeded": 9}
    return Facts.of_commit({"report": {"counts": counts, "golden": figures.model_dump(mode="json")}})


def test_golden_rows_are_judged_and_compared_with_slices_that_had_the_same_ones() -> None:
    gate = {"of": "golden", "min": 0.9}
    assert verdict(gate, golden(0.93)) == ("passed", 0.93)
    assert verdict(gate, golden(0.89)) == ("failed", 0.89)
    assert verdict(gate, facts()) == ("unknown", None)
    before = [facts(), golden(0.2, "b"), golden(0.93), golden(0.95), golden(0.94)]
    gate = {"of": "golden", "max": 0.05, "against": 5}
    assert verdict(gate, golden(0.88), *before) == ("failed", 0.06)
    assert verdict(gate, golden(0.92), *before) == ("passed", 0.02)
    assert verdict(gate, golden(0.88, "b"), *before) == ("unknown", None)
    assert verdict(gate, facts(), *before) == ("unknown", None)


def test_only_the_nearest_slices_count() -> None:
    before = [facts(10), facts(1000), facts(1000)]
    assert verdict({"of": "rows", "max": 1.5, "against": 1}, facts(12), *before) == ("passed", 1.2)


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ({"of": "truncate", "max": 1}, "'truncate' is no figure"),
        ({"of": "label:", "max": 1}, "is no figure"),
        ({"of": "truncated"}, "has no limit"),
        ({"of": "rows", "max": 1, "min": 2}, "lets nothing pass"),
        ({"of": "golden", "min": 90}, "'golden' has the limit 90: shares are from 0 to 1"),
        ({"of": "truncated", "max": 2}, "'truncated' has the limit 2: shares are from 0 to 1"),
        ({"of": "label:x", "min": 5, "max": 10}, "has the limit 5: shares"),
        ({"of": "labels", "max": 0.2}, "against="),
        ({"of": "spread:n", "max": 0.2}, "against="),
        ({"of": "median:", "max": 0.2}, "is no figure"),
        ({"of": "sql: ", "max": 0.2}, "is no figure"),
        ({"of": "rows", "max": float("nan")}, "finite"),
        ({"of": "rows", "max": 1, "against": 0}, "greater than or equal to 1"),
    ],
)
def test_gate_that_cannot_judge_is_refused(gate: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Gate(**gate)
