"""From an engine's vectors to a published column of lists of a fixed size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS, ROW_ID_FIELDS
from airflow_provider_raydatallm.processor.request.answer_shape import (
    AnswerParser,
    Failure,
    engine_failure,
    failed_attempts,
)

#: Error type of vectors that hold something else than numbers.
INVALID_VECTOR = "InvalidVector"
_TYPES = {"float32": pa.float32(), "float16": pa.float16()}


class VectorParser(AnswerParser):
    def __init__(self, job: SliceJob) -> None:
        super().__init__(job, None)
        self._dtype, self._size = job.embedding_dtype, job.embedding_dimensions

    @property
    def fields(self) -> list[pa.Field] | None:
        """Only answers say how long the model's vectors are."""
        return None

    @property
    def known_fields(self) -> list[pa.Field]:
        return [pa.field(self._column, pa.list_(_TYPES[self._dtype], self._size or -1))]

    def __call__(self, answers: pa.Table) -> tuple[pa.Table, pa.Table]:
        kinds, texts = (answers.column(name).to_pylist() for name in ("error_type", "error"))
        failures: list[Failure] = [
            engine_failure(i, kind, text)
            for i, (kind, text) in enumerate(zip(kinds, texts, strict=True))
            if text is not None
        ]
        indices = np.flatnonzero(answers.column("error").is_null().to_numpy())
        numbers = answers.column("numbers").take(pa.array(indices)).combine_chunks()
        vectors, are_valid = _to_vectors(numbers, self._dtype)
        message = f"the vector holds values that are no numbers of type {self._dtype}"
        failures += [(int(i), INVALID_VECTOR, message) for i in indices[~are_valid]]
        answered = answers.take(pa.array(indices[are_valid]))
        parsed = {f.name: answered.column(f.name).cast(f.type) for f in ROW_ID_FIELDS}
        parsed[self._column] = vectors
        counted = answered.append_column("truncated", pa.repeat(False, answered.num_rows))
        for field in COUNT_FIELDS:
            parsed[field.name] = counted.column(field.name.removeprefix("__")).cast(field.type)
        return pa.table(parsed), failed_attempts(answers, failures, {})


def _to_vectors(numbers: pa.ListArray, dtype: str) -> tuple[pa.Array, np.ndarray]:
    """
    :param numbers: lists of float32, all of one size, none of them null.
    :param dtype: a number that is too large for it becomes infinite.
    :return: the vectors that are finite, and which are.
    """
    if not len(numbers):
        return pa.nulls(0), np.zeros(0, bool)  # whose size nobody knows
    values = numbers.flatten().to_numpy(zero_copy_only=False)
    size = len(values) // len(numbers)
    with np.errstate(over="ignore"):
        vectors = values.reshape(len(numbers), size).astype(dtype)
    are_valid = np.isfinite(vectors).all(axis=1)
    kept = pa.array(np.ascontiguousarray(vectors[are_valid]).ravel(), _TYPES[dtype])
    return pa.FixedSizeListArray.from_arrays(kept, size), are_valid
