"""Gates over reports, against values that are known."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from airflow_provider_raydatallm.contract.spec.gate import Gate
from airflow_provider_raydatallm.processor.gates.judge import judge


def report(rows: int = 100, labels: dict[str, int] | None = None, **counts: int | None) -> dict[str, Any]:
    return {"counts": {"planned": rows, "succeeded": rows, **counts}, "labels": labels}


def verdict(gate: dict[str, Any], now: dict[str, Any], *before: dict[str, Any]) -> tuple[str, float | None]:
    [one] = judge([Gate(**gate)], now, before)
    return one.verdict, one.value if one.value is None else round(one.value, 4)


@pytest.mark.parametrize(
    ("gate", "now", "expected"),
    [
        ({"of": "truncated", "max": 0.02}, report(truncated=2), ("passed", 0.02)),
        ({"of": "truncated", "max": 0.02}, report(truncated=3), ("failed", 0.03)),
        ({"of": "truncated", "max": 0.02, "then": "warn"}, report(truncated=3), ("warned", 0.03)),
        ({"of": "truncated", "max": 0.02}, report(truncated=None), ("unknown", None)),
        ({"of": "quarantined", "max": 0}, report(0, quarantined=0), ("passed", 0.0)),
        ({"of": "rows", "min": 50}, report(49), ("failed", 49.0)),
        ({"of": "label:x", "min": 0.1, "max": 0.5}, report(labels={"x": 60, "y": 40}), ("failed", 0.6)),
        ({"of": "label:z", "min": 0.1}, report(labels={"x": 60, "y": 40}), ("failed", 0.0)),
        ({"of": "top_label", "max": 0.9}, report(labels={"x": 98, "y": 2}), ("failed", 0.98)),
        ({"of": "top_label", "max": 0.9}, report(), ("unknown", None)),
    ],
)
def test_figure_is_judged_by_its_limits(
    gate: dict[str, Any], now: dict[str, Any], expected: tuple[str, float | None]
) -> None:
    assert verdict(gate, now) == expected


@pytest.mark.parametrize(
    ("gate", "now", "before", "expected"),
    [
        ({"of": "rows", "min": 0.5}, report(40), [100, 80, 120], ("failed", 0.4)),
        ({"of": "rows", "max": 2}, report(150), [100, 80, 120], ("passed", 1.5)),
        ({"of": "rows", "max": 2}, report(150), [100, 80], ("unknown", None)),
        ({"of": "rows", "max": 2}, report(150), [0, 0, 0], ("unknown", None)),
    ],
)
def test_rows_are_compared_with_the_median_of_slices_before(
    gate: dict[str, Any], now: dict[str, Any], before: list[int], expected: tuple[str, float | None]
) -> None:
    assert verdict({**gate, "against": 7}, now, *map(report, before)) == expected


def test_labels_moved_by_their_total_variation() -> None:
    before = [
        report(labels={"x": 60, "y": 40}),
        report(labels={"x": 70, "y": 30}),
        report(labels={"x": 65, "y": 35}),
    ]
    gate = {"of": "labels", "max": 0.2, "against": 3}
    assert verdict(gate, report(labels={"x": 98, "y": 2}), *before) == ("failed", 0.33)
    assert verdict(gate, report(labels={"x": 60, "y": 35, "z": 5}), *before) == ("passed", 0.05)
    assert verdict(gate, report(labels={"z": 1}), *before) == ("failed", 1.0)


def test_only_the_nearest_slices_count() -> None:
    before = [report(10), report(1000), report(1000)]
    assert verdict({"of": "rows", "max": 1.5, "against": 1}, report(12), *before) == ("passed", 1.2)


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ({"of": "truncate", "max": 1}, "'truncate' is no figure"),
        ({"of": "label:", "max": 1}, "is no figure"),
        ({"of": "truncated"}, "has no limit"),
        ({"of": "rows", "max": 1, "min": 2}, "lets nothing pass"),
        ({"of": "truncated", "max": 2}, "'truncated' has the limit 2: shares are from 0 to 1"),
        ({"of": "label:x", "min": 5, "max": 10}, "has the limit 5: shares"),
        ({"of": "labels", "max": 0.2}, "against="),
        ({"of": "rows", "max": float("nan")}, "finite"),
        ({"of": "rows", "max": 1, "against": 0}, "greater than or equal to 1"),
    ],
)
def test_gate_that_cannot_judge_is_refused(gate: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Gate(**gate)
