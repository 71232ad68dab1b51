"""From an engine's numbers to published columns: vectors as lists of a fixed size, and scores."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser, Failure, Parsed
from airflow_provider_raydatallm.processor.sizing.model_config import vector_size

#: Error types of answers that hold something else than numbers.
INVALID_VECTOR = "InvalidVector"
INVALID_SCORE = "InvalidScore"
_TYPES = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
#: Largest number of an int8 vector; -128 is left out, so that a vector and its opposite are as long.
_LARGEST = 127


class VectorParser(AnswerParser):
    def __init__(self, job: SliceJob) -> None:
        self._column = job.output_column
        self._dtype = job.embedding_dtype
        #: As far as it is known before there is a vector.
        self._size = job.embedding_dimensions or vector_size(job.model_source, job.engine_kwargs)

    @property
    def fields(self) -> list[pa.Field] | None:
        """Only answers say how long the model's vectors are."""
        return None

    @property
    def known_fields(self) -> list[pa.Field]:
        vectors = pa.field(self._column, pa.list_(_TYPES[self._dtype], self._size or -1))
        return [vectors, *([self._scale_field] if self._dtype == "int8" else [])]

    @property
    def _scale_field(self) -> pa.Field:
        return pa.field(f"{self._column}_scale", pa.float32())

    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        dtype = "float32" if self._dtype == "int8" else self._dtype
        vectors, are_valid = _to_vectors(_numbers(answers, answered), dtype)
        message = f"the vector holds values that are no numbers of type {dtype}"
        failures, problems = _invalid(answered[~are_valid], INVALID_VECTOR, message)
        columns: dict[str, pa.Array] = {}
        if self._dtype == "int8":
            vectors, scales = _to_int8(vectors)
            columns[self._scale_field.name] = pa.array(scales, pa.float32())
        if len(vectors):
            kept = pa.array(np.ascontiguousarray(vectors).ravel(), _TYPES[self._dtype])
            columns = {self._column: pa.FixedSizeListArray.from_arrays(kept, vectors.shape[1]), **columns}
        else:
            columns = {self._column: pa.nulls(0), **columns}  # whose size nobody knows
        return Parsed(answered[are_valid], columns, failures, problems)


class ScoreParser(AnswerParser):
    def __init__(self, job: SliceJob) -> None:
        self._column = job.output_column

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self._column, pa.float32())]

    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        scores, are_valid = _to_vectors(_numbers(answers, answered), "float32")
        failures, problems = _invalid(answered[~are_valid], INVALID_SCORE, "the score is NaN")
        column = pa.array(scores.ravel(), pa.float32())
        return Parsed(answered[are_valid], {self._column: column}, failures, problems)


def _invalid(rows: np.ndarray, kind: str, message: str) -> tuple[list[Failure], dict[int, str]]:
    """Of answers that no answer cache may keep: what is NaN once may be a number when it is asked again."""
    return [(int(i), kind, message) for i in rows], dict.fromkeys(map(int, rows), message)


def _numbers(answers: pa.Table, rows: np.ndarray) -> pa.ListArray:
    return answers.column("numbers").take(pa.array(rows)).combine_chunks()


def _to_int8(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors in int8, and what each is to be multiplied with."""
    if not len(vectors):
        return vectors.astype(np.int8), np.zeros(0, np.float32)
    scales = (np.abs(vectors).max(axis=1) / _LARGEST).astype(np.float32)
    scales[scales == 0] = 1  # of a vector of zeros
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


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
