"""From an engine's numbers to published columns: vectors as lists of a fixed size, and scores."""

from __future__ import annotations

import copy

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.embed import Embed
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser, Failure, Parsed
from airflow_provider_raydatallm.processor.sizing.model_config import vector_size
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.agreed_columns import AgreedColumns
from airflow_provider_raydatallm.processor.value_types import ColumnTypes, TypeMismatch, merge_columns

#: Error types of answers that hold something else than numbers.
INVALID_VECTOR = "InvalidVector"
INVALID_SCORE = "InvalidScore"
_TYPES = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
#: Largest number of an int8 vector; -128 is left out, so that a vector and its opposite are as long.
_LARGEST = 127


class VectorParser(AnswerParser):
    """All vectors of a checkpoint have one size: tasks, nodes and runs agree on that of the first ones."""

    def __init__(self, job: SliceJob) -> None:
        self._column = job.output_column
        self._model = job.model_source
        embedding = job.task_as(Embed).embedding
        self._dtype = embedding.dtype
        self._asked_size = embedding.dimensions
        #: As far as it is known before there is a vector.
        self._likely_size = self._asked_size or vector_size(job.model_source, job.engine.arguments)
        self._agreed = AgreedColumns({})
        self._how_to_begin_anew = "set rerun.force=True"
        self._is_forced = job.rerun.force

    def agreeing_in(self, url: str, folder: str) -> VectorParser:
        parser = copy.copy(self)
        if self._is_forced:  # a retry continues with the rows of this run
            parser._how_to_begin_anew = f"remove {Store(url).path(folder)}"
        parser._agreed = AgreedColumns({}, url, folder)
        return parser

    @property
    def fields(self) -> list[pa.Field] | None:
        """Only answers say how long the model's vectors are."""
        return None

    @property
    def known_fields(self) -> list[pa.Field]:
        vectors = pa.field(self._column, pa.list_(_TYPES[self._dtype], self._likely_size or -1))
        return [vectors, *([self._scale_field] if self._dtype == "int8" else [])]

    @property
    def _scale_field(self) -> pa.Field:
        return pa.field(f"{self._column}_scale", pa.float32())

    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        numbers = _Numbers(answers, answered)
        failures, problems = _invalid(numbers.rows_without, INVALID_VECTOR, "the answer holds no vector")
        for size in numbers.sizes:
            self._check_size(size)
        if not numbers.sizes:
            return Parsed(numbers.rows, {self._column: pa.nulls(0)}, failures, problems)  # no size is known
        dtype = "float32" if self._dtype == "int8" else self._dtype
        with np.errstate(over="ignore"):  # a number that is too large becomes infinite
            vectors = numbers.of_size(numbers.sizes[0]).astype(dtype)
        are_valid = np.isfinite(vectors).all(axis=1)
        message = f"the vector holds values that are no numbers of type {dtype}"
        more_failures, more_problems = _invalid(numbers.rows[~are_valid], INVALID_VECTOR, message)
        vectors = vectors[are_valid]
        columns: dict[str, pa.Array] = {}
        if self._dtype == "int8":
            vectors, scales = _to_int8(vectors)
            columns[self._scale_field.name] = pa.array(scales, pa.float32())
        kept = pa.array(np.ascontiguousarray(vectors).ravel(), _TYPES[self._dtype])
        columns = {self._column: pa.FixedSizeListArray.from_arrays(kept, vectors.shape[1]), **columns}
        return Parsed(numbers.rows[are_valid], columns, failures + more_failures, problems | more_problems)

    def _check_size(self, size: int) -> None:
        """:raises SliceError: for another size than was asked for, or than the first vectors have."""
        if self._asked_size not in (None, size):
            raise SliceError(
                f"the model answers vectors of {size} numbers, and embedding.dimensions is "
                f"{self._asked_size}",
                kind="input",
                advice="Check that this model can cut its vectors, or leave it out",
            )
        kind: ColumnTypes = {self._column: {"vector": [self._dtype, size]}}
        try:
            self._agreed.agree(lambda known: merge_columns(known, kind))
        except TypeMismatch as e:
            first = self._agreed.agree(lambda known: known)[self._column]
            assert isinstance(first, dict)
            raise SliceError(
                f"the model's vectors had {first['vector'][1]} numbers in this slice's first answers and "
                f"{size} now: the model behind its name changed, or several answer to it",
                kind="input",
                advice=(
                    f"Check that {self._model!r} names one model, at all its servers; name its version where "
                    "it has one",
                    f"To publish the slice with the model as it is now, {self._how_to_begin_anew}: then all "
                    "of its rows are answered again",
                ),
            ) from e


class ScoreParser(AnswerParser):
    def __init__(self, job: SliceJob) -> None:
        self._column = job.output_column

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(self._column, pa.float32())]

    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        numbers = _Numbers(answers, answered)
        if others := [size for size in numbers.sizes if size != 1]:
            raise SliceError(
                f"the model answers {others[0]} numbers for a row, and a score is one",
                kind="input",
                advice="Give a model whose head has one label",
            )
        scores = numbers.of_size(1).ravel()
        are_valid = np.isfinite(scores)
        wrong = np.concatenate([numbers.rows_without, numbers.rows[~are_valid]])
        failures, problems = _invalid(wrong, INVALID_SCORE, "the score is missing or NaN")
        column = pa.array(scores[are_valid], pa.float32())
        return Parsed(numbers.rows[are_valid], {self._column: column}, failures, problems)


class _Numbers:
    """Answers that are numbers, as many for each row as it has itself.

    :ivar rows: that have any, and `rows_without`.
    :ivar sizes: how many a row has, each once, in the order of the rows.
    """

    def __init__(self, answers: pa.Table, answered: np.ndarray) -> None:
        """:param answered: the rows to read."""
        numbers = answers.column("numbers").take(pa.array(answered)).combine_chunks()
        lengths = pc.fill_null(pc.list_value_length(numbers), 0).to_numpy(zero_copy_only=False)
        self.rows, self.rows_without = answered[lengths > 0], answered[lengths == 0]
        self.sizes: list[int] = list(dict.fromkeys(lengths[lengths > 0].tolist()))
        self._values = numbers.flatten().to_numpy(zero_copy_only=False)

    def of_size(self, size: int) -> np.ndarray:
        """Of each row that has any, where all have this many."""
        assert self.sizes in ([], [size])
        vectors: np.ndarray = self._values.reshape(len(self.rows), size)
        return vectors


def _invalid(rows: np.ndarray, kind: str, message: str) -> tuple[list[Failure], dict[int, str]]:
    """Of answers that no answer cache may keep: what is NaN once may be a number when it is asked again."""
    return [(int(i), kind, message) for i in rows], dict.fromkeys(map(int, rows), message)


def _to_int8(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors in int8, and what each is to be multiplied with."""
    if not len(vectors):
        return vectors.astype(np.int8), np.zeros(0, np.float32)
    scales = (np.abs(vectors).max(axis=1) / _LARGEST).astype(np.float32)
    scales[scales == 0] = 1  # of a vector of zeros
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales
