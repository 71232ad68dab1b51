"""Vectors of an engine as a published column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.request.answers.numbers import INVALID_VECTOR, VectorParser
from tests.support.in_process import job_of


def parse(
    numbers: list[list[float] | None], errors: list[str | None], dtype: str
) -> tuple[pa.Table, pa.Table]:
    ids = pa.table({
        "__unit": pa.array([0] * len(numbers), pa.int32()),
        "__offset": pa.array(range(len(numbers)), pa.int64()), "__request": ["{}"] * len(numbers),
    })  # fmt: skip
    answers = answer_table(
        ids,
        numbers=pa.array(numbers, pa.list_(pa.float32())),
        error=errors,
        deduplicated=[False] * len(numbers),
    )  # fmt: skip
    job = job_of(input_path="/i", output_path="/o", task="embed", engine="vllm", embedding_dtype=dtype)
    return VectorParser(job)(answers)


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 3.0e38), ("float16", 65504.0)])
def test_rows_without_a_vector_and_numbers_that_are_none_stop_no_other(dtype: str, largest: float) -> None:
    numbers = [[1.0, 2.0], None, [np.nan, 0.0], [largest, -0.5], [np.inf, 1.0], [0.0, 0.0]]
    parsed, failed = parse(numbers, [None, "ValueError: no", None, None, None, None], dtype)
    assert parsed.schema.field("answer").type == pa.list_(pa.from_numpy_dtype(dtype), 2)
    assert parsed.column("__offset").to_pylist() == [0, 3, 5]
    assert np.array(parsed.column("answer").to_pylist()) == pytest.approx(
        np.array([[1, 2], [largest, -0.5], [0, 0]]), rel=1e-3
    )
    kinds = dict(
        zip(failed.column("__offset").to_pylist(), failed.column("error_type").to_pylist(), strict=True)
    )
    assert kinds == {1: "EngineError", 2: INVALID_VECTOR, 4: INVALID_VECTOR}
    # By which the answer cache leaves it out.
    assert [problem is not None for problem in failed.column("problem").to_pylist()] == [False, True, True]


def test_int8_is_the_vector_within_half_a_scale() -> None:
    given = [[0.5, -1.0, 0.003], [0.0, 0.0, 0.0], [1e-40, 0.0, -1e-40], [3e38, -3e38, 1.0]]
    parsed, failed = parse([*given, [np.nan, 0.0, 0.0]], [None] * 5, "int8")
    assert parsed.schema.field("answer").type == pa.list_(pa.int8(), 3)
    assert failed.column("error_type").to_pylist() == [INVALID_VECTOR]
    scales = np.array(parsed.column("answer_scale"), np.float64)
    back = np.array(parsed.column("answer").to_pylist()) * scales[:, None]
    assert (np.abs(back - np.array(given)) <= scales[:, None] * 0.501).all()
    assert np.abs(np.array(parsed.column("answer").to_pylist())).max() == 127


def test_number_that_is_too_large_for_its_type_is_told() -> None:
    _, failed = parse([[1e5, 0.0]], [None], "float16")
    assert failed.column("error").to_pylist() == [
        "the vector holds values that are no numbers of type float16"
    ]


def test_group_of_failed_rows_says_nothing_of_the_vectors_size() -> None:
    parsed, failed = parse([None, None], ["a", "b"], "float32")
    assert (parsed.num_rows, parsed.schema.field("answer").type) == (0, pa.null())
    assert failed.num_rows == 2
