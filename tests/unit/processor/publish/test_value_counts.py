from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.publish.value_counts import (
    count_labels,
    count_reasons,
    label_column,
    reported,
)
from tests.support.slice_jobs import slice_job


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        (["a", "b", "a", None], {"a": 2, "b": 1}),
        ([["a", "b"], ["a"], [], None], {"a": 2, "b": 1}),
        ([["a", "a"], ["b", "a", "a"], [None, "b", None]], {"a": 2, "b": 2}),
        ([1.5, 2.5], {}),
    ],
)
def test_rows_of_each_label_are_counted(values: list[object], counts: dict[str, int]) -> None:
    table = pa.table({"answer": values})
    assert count_labels(table, "answer") == counts
    assert count_labels(pa.concat_tables([table, table]), "answer") == {k: 2 * n for k, n in counts.items()}
    assert count_labels(table, None) == count_labels(table, "absent") == {}


def test_only_answers_that_are_labels_are_counted() -> None:
    assert label_column(slice_job(choices=("a", "b"))) == "answer"
    assert label_column(slice_job()) is None


def test_report_names_the_most_frequent_labels() -> None:
    labels = {f"label {i:03}": i for i in range(200)}
    named = reported(labels)
    assert named is not None
    assert (len(named), next(iter(named.items()))) == (50, ("label 199", 199))
    assert reported({}) is None


def test_reasons_are_names_and_never_texts() -> None:
    types = ["KeyError", "KeyError", "user_code.BadRow", "Jane Doe owes 5", "Ivan\n", None, "x" * 200]
    errors = pa.array(["x"] * len(types), pa.string())
    counts = count_reasons(pa.table({"error_type": pa.array(types, pa.string()), "error": errors}))
    assert counts == {"KeyError": 2, "user_code.BadRow": 1, "Other": 3}


def test_reason_of_a_users_function_names_it_and_its_line() -> None:
    errors = [
        "postprocess (labels.py:12): 'x'", "postprocess (labels.py:12): 'y'", "preprocess: no", None,
        "postprocess returned nothing", f"preprocess ({'x' * 200}.py:1): no",
    ]  # fmt: skip
    table = pa.table({"error_type": pa.array(["KeyError"] * 6), "error": pa.array(errors, pa.string())})
    assert count_reasons(table) == {
        "KeyError in postprocess (labels.py:12)": 2, "KeyError in preprocess": 2, "KeyError": 2,
    }  # fmt: skip
