"""Vectors of an engine as a published column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.request.answers.numbers import (
    INVALID_SCORE,
    INVALID_VECTOR,
    ScoreParser,
    VectorParser,
)
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from tests.support.in_process import job_of


def parse(
    numbers: list[list[float] | None],
    errors: list[str | None] | None = None,
    dtype: str = "float32",
    parser: AnswerParser | None = None,
) -> tuple[pa.Table, pa.Table]:
    ids = pa.table({
        "__unit": pa.array([0] * len(numbers), pa.int32()),
        "__offset": pa.array(range(len(numbers)), pa.int64()), "__request": ["{}"] * len(numbers),
    })  # fmt: skip
    answers = answer_table(
        ids,
        numbers=pa.array(numbers, pa.list_(pa.float32())),
        error=errors or [None] * len(numbers),
        deduplicated=[False] * len(numbers),
    )  # fmt: skip
    return (parser or VectorParser(vector_job(embedding__dtype=dtype)))(answers)


def vector_job(**given: Any) -> SliceJob:
    return job_of(input_path="/i", output_path="/o", task="embed", engine="vllm", **given)


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


@pytest.mark.parametrize(
    "numbers",
    [[[1.0] * 8, [2.0] * 16, [3.0] * 8], [[1.0] * 8, [2.0] * 16], [[1.0] * 4, [2.0] * 2, [3.0] * 2]],
)
def test_vectors_of_two_sizes_end_the_slice_and_none_is_made_of_two_rows(numbers: Any) -> None:
    """Also where all numbers together would fill vectors of one size."""
    with pytest.raises(SliceError, match="the model behind its name changed") as caught:
        parse(numbers)
    assert caught.value.kind == "input"
    sizes = [len(numbers[0]), len(numbers[1])]
    assert f"vectors had {sizes[0]} numbers in this slice's first answers and {sizes[1]} now" in str(
        caught.value
    )


def test_all_groups_and_runs_of_a_checkpoint_have_vectors_of_one_size(tmp_path: Path) -> None:
    def parser() -> AnswerParser:
        return VectorParser(vector_job()).agreeing_in(str(tmp_path), "c")

    parse([None], ["a"], parser=parser())  # says nothing of it
    parse([[1.0] * 8], parser=parser())
    with pytest.raises(SliceError, match=r"had 8 numbers .* and 16 now"):
        parse([[1.0] * 16, [1.0] * 16], parser=parser())
    rows, _ = parse([[2.0] * 8], parser=parser())
    assert rows.column("answer").to_pylist() == [[2.0] * 8]
    forced = VectorParser(vector_job(rerun__force=True)).agreeing_in(str(tmp_path), "c")
    with pytest.raises(SliceError, match=f"remove {tmp_path}/c"):
        parse([[1.0] * 16], parser=forced)


def test_vector_of_another_size_than_asked_for_is_told() -> None:
    with pytest.raises(SliceError, match=r"8 numbers, and embedding\.dimensions is 4"):
        parse([[1.0] * 8], parser=VectorParser(vector_job(embedding__dimensions=4)))


def test_row_without_numbers_fails_and_moves_no_other_rows_numbers() -> None:
    given: Any = [[1.0, 2.0], None, [3.0, 4.0], []]
    rows, failed = parse(given)
    assert rows.column("__offset").to_pylist() == [0, 2]
    assert rows.column("answer").to_pylist() == [[1.0, 2.0], [3.0, 4.0]]
    assert failed.column("error_type").to_pylist() == [INVALID_VECTOR] * 2


def test_score_is_one_number_of_its_own_row() -> None:
    job = job_of(input_path="/i", output_path="/o", task="score", query="q", engine="vllm")
    rows, failed = parse([[0.5], None, [0.25], [np.nan]], parser=ScoreParser(job))
    assert rows.select(["__offset", "answer"]).to_pylist() == [
        {"__offset": 0, "answer": 0.5},
        {"__offset": 2, "answer": 0.25},
    ]
    assert failed.column("error_type").to_pylist() == [INVALID_SCORE] * 2
    with pytest.raises(SliceError, match="2 numbers"):
        parse([[0.5, 0.5], [0.25, 0.75]], parser=ScoreParser(job))
