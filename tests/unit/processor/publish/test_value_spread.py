from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.publish.value_spread import count_spread


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        (["a", "bb", "", None, "x" * 1234, "y" * 1249, "ü"], {"0": 1, "1": 2, "2": 1, "1.2e+03": 2}),
        ([1.5, -3.0, 0.0, -0.0, None, 0.0123], {"0": 2, "1.5": 1, "-3": 1, "0.012": 1}),
        ([float("nan"), float("inf"), float("-inf")], {}),
        ([1.7976931348623157e308, -1e308, 5e-324], {"1e+290": 1, "-1e+290": 1, "0": 1}),
        ([9, 10, 99, 100, 2**63 - 1], {"9": 1, "10": 1, "99": 1, "1e+02": 1, "9.2e+18": 1}),
        ([994, 996], {"9.9e+02": 1, "1e+03": 1}),
        ([[1.0], [2.0]], {}),
        ([None, None], {}),
    ],
)  # fmt: skip
def test_rows_of_each_value_are_counted(values: list[object], counts: dict[str, int]) -> None:
    table = pa.table({"answer": values})
    assert count_spread(table, "answer") == counts
    assert count_spread(table, "absent") == {}


def test_values_are_rounded_as_python_rounds_them() -> None:
    values = np.random.default_rng(7).lognormal(0, 9, 20_000)
    assert count_spread(pa.table({"a": values}), "a") == Counter(f"{value:.2g}" for value in values)
