"""The texts that a row's request brought, and the columns that say more of each: what the model thought
before it, and how probable it found it. With several answers a row, these columns hold lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import CUT_BY, TEXT_FIELDS


class Said(NamedTuple):
    """`TEXT_FIELDS`."""

    text: str | None
    finish_reason: str | None = None
    reasoning: str | None = None
    logprob: float | None = None
    logprob_tokens: int | None = None

    @property
    def was_cut(self) -> bool:
        return self.finish_reason in CUT_BY


class AnswerDetails:
    """Of a job. Picklable."""

    def __init__(self, job: SliceJob) -> None:
        self._has_several = job.task.answers_per_row > 1
        given = job.task.given(job)
        self._names = ["reasoning"] if "reasoning_parser" in given else []
        self._names += ["logprob", "logprob_tokens"] if "logprobs" in given else []
        types = {field.name: field.type for field in TEXT_FIELDS}
        #: Columns beside the answer.
        self.fields = [self.answer_field(f"{job.output_column}_{name}", types[name]) for name in self._names]

    def answer_field(self, name: str, kind: pa.DataType) -> pa.Field:
        """The column of something that each answer has."""
        return pa.field(name, pa.list_(kind) if self._has_several else kind)

    def read(self, answers: pa.Table) -> Iterator[list[Said]]:
        """Yields the texts of each row, of which there is one unless the job asks for several."""
        columns = (answers.column(field.name).to_pylist() for field in TEXT_FIELDS)
        for texts, *values in zip(answers.column("texts").to_pylist(), *columns, strict=True):
            said = [Said(**text) for text in texts] if texts else [Said(*values)]
            yield said if self._has_several else said[:1]

    def join(self, values: list[Any]) -> Any:
        """What the column of the answer holds of a row.

        :param values: of its texts.
        """
        return values if self._has_several else values[0]

    def values(self, said: Sequence[Said]) -> list[Any]:
        """The values of `fields`."""
        return [self.join([getattr(text, name) for text in said]) for name in self._names]
