"""From an engine's answers to published columns: what the parsers of all tasks have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.row_errors import PROMPT_TOO_LONG
from airflow_provider_raydatallm.processor.columns import (
    COUNT_FIELDS,
    CUT_BY,
    DETAIL_FIELDS,
    FAILED_FIELDS,
    ROW_ID_FIELDS,
    SAID_FIELDS,
    SPENT_FIELDS,
    failed_table,
)

#: How vLLM says that it refuses a prompt for its length.
_TOO_LONG = re.compile(r"longer than the maximum|maximum context length|exceeds[^.]*max_model_len")

_NO_FAILURES = pa.Table.from_batches([], pa.schema([*FAILED_FIELDS, *SAID_FIELDS, *SPENT_FIELDS]))

#: Counters of valid answers that lack their end, by `finish_reason`.
_COUNTED = dict(zip(CUT_BY, ("truncated", "degenerate"), strict=True))

#: (row, error type, message)
Failure = tuple[int, str, str]


class Parsed(NamedTuple):
    """
    :param rows: the answers that are valid.
    :param columns: what is published of them.
    :param failures: the others.
    :param problems: of invalid answers, what is wrong with them, by row.
    """

    rows: Any
    columns: dict[str, pa.Array]
    failures: list[Failure]
    problems: dict[int, str]


class AnswerParser(ABC):
    """Parses a table of answers into one of row ids, published columns and counts, and one of failed rows.

    Picklable: it runs in the tasks that take answers from the engine.
    """

    #: Whether answers must carry their input row.
    needs_row = False

    @property
    @abstractmethod
    def fields(self) -> list[pa.Field] | None:
        """Published columns; None when only answers tell them."""

    @property
    def known_fields(self) -> list[pa.Field]:
        """Published columns that are known before there is an answer."""
        return self.fields or []

    def agreeing_in(self, url: str, folder: str) -> AnswerParser:
        """A parser that agrees with all others of a checkpoint on what answers leave open."""
        return self

    def __call__(self, answers: pa.Table) -> tuple[pa.Table, pa.Table]:
        errors = answers.column("error")
        failed = np.flatnonzero(errors.is_valid().to_numpy())
        of_failed = answers.select(["error_type", "error"]).take(pa.array(failed)).to_pylist()
        failures = [
            _engine_failure(int(i), row["error_type"], row["error"])
            for i, row in zip(failed, of_failed, strict=True)
        ]
        answered = np.flatnonzero(errors.is_null().to_numpy())
        parsed = self._parse(answers, answered)
        rows = answers.take(pa.array(parsed.rows, pa.int64()))
        table = {f.name: rows.column(f.name).cast(f.type) for f in ROW_ID_FIELDS} | parsed.columns
        is_uncounted = pc.or_(*(rows.column(name).is_null() for name in ("input_tokens", "output_tokens")))
        rows = rows.append_column("uncounted", is_uncounted)
        for finish_reason, name in _COUNTED.items():
            rows = rows.append_column(name, self._ended_by(rows, finish_reason))
        for field in [*COUNT_FIELDS, *DETAIL_FIELDS]:
            table[field.name] = rows.column(field.name.removeprefix("__")).cast(field.type)
        return pa.table(table), _failed_attempts(answers, failures + parsed.failures, parsed.problems)

    @abstractmethod
    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        """:param answered: the rows that the engine answered."""

    def _ended_by(self, rows: pa.Table, finish_reason: str) -> pa.Array:
        """Whether valid answers lack their end for this reason."""
        return pa.repeat(False, rows.num_rows)


def _engine_failure(index: int, error_type: str | None, error: str) -> Failure:
    kind = PROMPT_TOO_LONG if _TOO_LONG.search(error) else error_type or "EngineError"
    return index, kind, error


def _failed_attempts(answers: pa.Table, failures: list[Failure], problems: dict[int, str]) -> pa.Table:
    """The failed rows, with what the engine did for them."""
    if not failures:
        return _NO_FAILURES
    rows = [i for i, _, _ in failures]
    attempts = answers.take(pa.array(rows, pa.int64()))
    texts = attempts.column("text").to_pylist()
    said = [
        [text if i in problems else None for i, text in zip(rows, texts, strict=True)],
        [problems.get(i) for i in rows],
    ]
    table = failed_table(answers, failures)
    for field, values in zip(SAID_FIELDS, said, strict=True):
        table = table.append_column(field, pa.array(values, field.type))
    for field in SPENT_FIELDS:
        table = table.append_column(field, attempts.column(field.name.removeprefix("__")).cast(field.type))
    return table
