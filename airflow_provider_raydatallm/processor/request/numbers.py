"""From an engine's numbers to published columns: vectors as lists of a fixed size, and scores."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.request.answer_parser import AnswerParser, Parsed

#: Error types of answers that hold something else than numbers.
INVALID_VECTOR = "InvalidVector"
INVALID_SCORE = "InvalidScore"
_TYPES = {"float32": pa.float32(), "float16": pa.float16()}


class VectorParser(AnswerParser):
    def __init__(self, job: SliceJob) -> None:
        self._column = job.output_column
        self._dtype, self._size = job.embedding_dtype, job.embedding_dimensions

    @property
    def fields(self) -> list[pa.Field] | None:
        """Only answers say how long the model's vectors are."""
        return None

    @property
    def known_fields(self) -> list[pa.Field]:
        return [pa.field(self._column, pa.list_(_TYPES[self._dtype], self._size or -1))]

    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        vectors, are_valid = _to_vectors(_numbers(answers, answered), self._dtype)
        message = f"the vector holds values that are no numbers of type {self._dtype}"
        failures = [(int(i), INVALID_VECTOR, message) for i in answered[~are_valid]]
        if not len(vectors):
            return Parsed([], {self._column: pa.nulls(0)}, failures, {})  # whose size nobody knows
        kept = pa.array(np.ascontiguousarray(vectors).ravel(), _TYPES[self._dtype])
        column = pa.FixedSizeListArray.from_arrays(kept, vectors.shape[1])
        return Parsed(answered[are_valid], {self._column: column}, failures, {})


class ScoreParser(AnswerParser):
    def __init__(self, job: SliceJob) -> None:
        self._column = job.output_column

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self._column, pa.float32())]

    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        scores, are_valid = _to_vectors(_numbers(answers, answered), "float32")
        failures = [(int(i), INVALID_SCORE, "the score is no number") for i in answered[~are_valid]]
        column = pa.array(scores.ravel(), pa.float32())
        return Parsed(answered[are_valid], {self._column: column}, failures, {})


def _numbers(answers: pa.Table, rows: np.ndarray) -> pa.ListArray:
    return answers.column("numbers").take(pa.array(rows)).combine_chunks()


def _to_vectors(numbers: pa.ListArray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """
    :param numbers: lists of float32, all of one size, none of them null.
    :param dtype: a number that is too large for it becomes infinite.
    :return: the vectors that are finite, and which are.
    """
    if not len(numbers):
        return np.zeros((0, 0), dtype), np.zeros(0, bool)
    values = numbers.flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        vectors = values.reshape(len(numbers), -1).astype(dtype)
    are_valid = np.isfinite(vectors).all(axis=1)
    return vectors[are_valid], are_valid
