"""Statistics of golden rows, against values that are known."""

from __future__ import annotations

import numpy as np
import pytest

from airflow_provider_raydatallm.contract.result.probes import MOST_CONFUSIONS
from airflow_provider_raydatallm.processor.probes.statistics import (
    calibration_error,
    confusions,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("correct", "rows", "expected"),
    [
        (8, 10, (0.4902, 0.9433)),
        (0, 10, (0.0, 0.2775)),
        (10, 10, (0.7225, 1.0)),
        (1, 1, (0.2065, 1.0)),
        (900, 1000, (0.8798, 0.9171)),
        (0, 0, (0.0, 1.0)),
    ],
)
def test_wilson_interval(correct: int, rows: int, expected: tuple[float, float]) -> None:
    assert wilson_interval(correct, rows) == expected


def test_calibration_error_is_numpys() -> None:
    rng = np.random.default_rng(7)
    probabilities = np.concatenate([rng.random(5000), [0.0, 1.0, 0.1, 0.9]])
    right = rng.random(len(probabilities)) < probabilities**2
    bins = np.digitize(probabilities, np.linspace(0, 1, 11)[1:-1])
    expected = sum(
        abs(probabilities[bins == one].mean() - right[bins == one].mean()) * (bins == one).mean()
        for one in np.unique(bins)
    )
    assert calibration_error(probabilities.tolist(), right.tolist()) == round(expected, 4)


@pytest.mark.parametrize(
    ("probabilities", "right", "expected"),
    [([], [], None), ([1.0, 1.0], [True, True], 0.0), ([0.95] * 4, [True] * 3 + [False], 0.2)],
)
def test_calibration_error_of_few_rows(
    probabilities: list[float], right: list[bool], expected: float | None
) -> None:
    assert calibration_error(probabilities, right) == (expected and pytest.approx(expected))


def test_confusions_are_the_most_frequent_mistakes() -> None:
    pairs = [("a", "b")] * 3 + [("b", "a")] * 3 + [("a", "a")] * 9 + [("c", None)]
    assert [(one.expected, one.answered, one.rows) for one in confusions(pairs)] == [
        ("a", "b", 3), ("b", "a", 3), ("c", None, 1),
    ]  # fmt: skip
    assert len(confusions((str(n), "x") for n in range(100))) == MOST_CONFUSIONS
