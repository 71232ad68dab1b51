"""From an engine's text to published columns.

The job fixes what an answer must be: any text, one of `choices`, or JSON that is valid by `output_schema`. A
row whose answer is not valid (cut at max_tokens, say), or whose postprocess function raises, goes to
quarantine and stops no other row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS, ROW_ID_FIELDS, failed_table
from airflow_provider_raydatallm.processor.request.output_schema import arrow_type

#: Error types of invalid answers; the second of those that max_tokens cut.
INVALID_ANSWER, TRUNCATED_ANSWER = "InvalidAnswer", "TruncatedAnswer"
#: Error type of prompts that the engine refuses for their length, in vLLM's words.
PROMPT_TOO_LONG = "PromptTooLong"
_TOO_LONG = re.compile(r"longer than the maximum|maximum context length|exceeds[^.]*max_model_len")


class AnswerParser:
    """Parses a table of answers into one of row ids, published columns and counts, and one of failed rows.

    Picklable: it runs in the tasks that take answers from the engine.
    """

    def __init__(self, job: SliceJob, postprocess: Callable[[dict[str, Any]], Any] | None) -> None:
        self._column = job.output_column
        self._choices = frozenset(job.choices) if job.choices else None
        self._type = arrow_type(job.output_schema) if job.output_schema is not None else pa.string()
        self._schema = job.output_schema
        self._postprocess = postprocess

    @property
    def needs_row(self) -> bool:
        """Whether answers must carry their input row."""
        return self._postprocess is not None

    @property
    def fields(self) -> list[pa.Field] | None:
        """Published columns; None when only the postprocess function knows them."""
        return [pa.field(self._column, self._type)] if self._postprocess is None else None

    def __call__(self, answers: pa.Table) -> tuple[pa.Table, pa.Table]:
        indices: list[int] = []
        values: list[Any] = []
        failures: list[tuple[int, str, str]] = []
        names = ("text", "finish_reason", "error_type", "error")
        columns = [answers.column(name).to_pylist() for name in names]
        rows = answers.column("__row").to_pylist() if self._postprocess else []
        for i, (text, reason, error_type, error) in enumerate(zip(*columns, strict=True)):
            if error is not None:
                kind = PROMPT_TOO_LONG if _TOO_LONG.search(error) else error_type or "EngineError"
                failures.append((i, kind, error))
                continue
            value = self._parse(text)
            if value is None:
                cut = reason == "length"
                message = f"{self._invalid}{' (max_tokens cut it)' if cut else ''}: {text!r}"
                failures.append((i, TRUNCATED_ANSWER if cut else INVALID_ANSWER, message))
                continue
            if self._postprocess is not None:
                try:
                    value = self._process(rows[i], value)
                except SliceError:
                    raise
                except Exception as e:
                    failures.append((i, type(e).__name__, f"postprocess: {e}"))
                    continue
            indices.append(i)
            values.append(value)
        answered = answers.take(pa.array(indices, pa.int64()))
        parsed = {f.name: answered.column(f.name).cast(f.type) for f in ROW_ID_FIELDS}
        parsed |= self._build_columns(values)
        # An answer of a valid shape is whole, even when max_tokens came with its last character.
        shaped = self._choices is not None or self._schema is not None
        truncated = pc.and_(pc.equal(answered.column("finish_reason"), "length"), not shaped)
        for field in COUNT_FIELDS:
            counts = truncated if field.name == "__truncated" else answered.column(field.name[2:])
            parsed[field.name] = counts.cast(field.type)
        return pa.table(parsed), failed_table(answers, failures)

    def _parse(self, text: str | None) -> Any:
        """The answer's value; None for an invalid one."""
        if text is None or (self._choices is not None and text not in self._choices):
            return None
        if self._schema is None:
            return text
        try:
            value = json.loads(text)
            pa.array([value], self._type)
        except (ValueError, OverflowError, RecursionError, pa.ArrowException):
            return None
        if value is None or not self._validator.is_valid(value):
            return None
        return text if self._type == pa.string() else value

    @property
    def _invalid(self) -> str:
        if self._choices is not None:
            return "the answer is none of the choices"
        return "the answer is not valid by output_schema" if self._schema is not None else "no answer"

    @cached_property
    def _validator(self) -> jsonschema.protocols.Validator:
        assert self._schema is not None
        return jsonschema.validators.validator_for(self._schema)(self._schema)

    def _process(self, row: str, value: Any) -> Mapping[str, Any]:
        assert self._postprocess is not None
        result = self._postprocess({**json.loads(row), self._column: value})
        values = result if isinstance(result, Mapping) else {self._column: result}
        if reserved := [name for name in values if str(name).startswith("__")]:
            raise SliceError(
                f"postprocess returned the column {reserved[0]!r}: the provider reserves names that begin "
                "with __",
                kind="input",
            )
        return values

    def _build_columns(self, values: list[Any]) -> dict[str, pa.Array]:
        if self._postprocess is None:
            return {self._column: pa.array(values, self._type)}
        names = list(dict.fromkeys(name for row in values for name in row))
        try:
            return {name: pa.array([row.get(name) for row in values]) for name in names}
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(
                f"postprocess returned values of different types for one column: {e}", kind="input"
            ) from e
