"""From an engine's text to published columns.

The job fixes what an answer must be: any text, one of `choices`, JSON that is valid by `output_schema`, or
text of a `regex` or `grammar`. A row whose answer is not valid (cut at max_tokens, say), whose postprocess
function raises, or whose values do not fit the columns of the other rows, has failed and stops no other row.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.counters import INVALID_OUTPUT, TRUNCATED_ANSWER
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.columns import (
    COUNT_FIELDS,
    FAILED_FIELDS,
    ROW_ID_FIELDS,
    SAID_FIELDS,
    SPENT_FIELDS,
    describe_error,
    failed_table,
)
from airflow_provider_raydatallm.processor.input.listing import folder_column
from airflow_provider_raydatallm.processor.request import label_confidence
from airflow_provider_raydatallm.processor.request.answer_details import AnswerDetails, Said
from airflow_provider_raydatallm.processor.request.answer_grammar import AnswerGrammar
from airflow_provider_raydatallm.processor.request.output_schema import AnswerSchema, InvalidOutput
from airflow_provider_raydatallm.processor.request.return_types import declared_columns
from airflow_provider_raydatallm.processor.store.agreed_columns import AgreedColumns
from airflow_provider_raydatallm.processor.value_types import (
    ColumnTypes,
    TypeMismatch,
    ValueType,
    arrow_type,
    as_mapping,
    brief,
    coerce,
    commonest,
    count_fields,
    describe,
    merge,
    typed,
)

#: Error type of prompts that the engine refuses for their length, in vLLM's words.
PROMPT_TOO_LONG = "PromptTooLong"
#: Error type of postprocess results that do not fit the columns.
TYPE_MISMATCH = TypeMismatch.__name__
_TOO_LONG = re.compile(r"longer than the maximum|maximum context length|exceeds[^.]*max_model_len")
#: Columns and fields of a table: names that a model wrote must not widen it without end.
_MAX_FIELDS = 1000

_NO_FAILURES = pa.schema([*FAILED_FIELDS, *SAID_FIELDS, *SPENT_FIELDS]).empty_table()

#: (row, error type, message)
Failure = tuple[int, str, str]


class _Result(NamedTuple):
    """What postprocess returned for a row: type and value by column."""

    row: int
    columns: dict[str, tuple[ValueType, Any]]
    #: A name in it that is not free.
    taken_name: str | None


class AnswerParser:
    """Parses a table of answers into one of row ids, published columns and counts, and one of failed rows.

    Picklable: it runs in the tasks that take answers from the engine.
    """

    def __init__(
        self,
        job: SliceJob,
        postprocess: Callable[[dict[str, Any]], Any] | None,
        input_columns: Collection[str] = (),
    ) -> None:
        """:param input_columns: names that answer columns must not have.
        :raises SliceError: when output_schema cannot be used, or postprocess declares names that are taken.
        """
        self._column = job.output_column
        self._choices = job.choices
        self._details = AnswerDetails(job)
        #: Columns beside the answer.
        self._beside = [*label_confidence.fields(job), *self._details.fields]
        self._schema, self._grammar = None, None
        if job.output_schema is not None:
            self._schema = AnswerSchema(job.output_schema, job.output_mode)
        if job.regex is not None or job.grammar is not None:
            self._grammar = AnswerGrammar(regex=job.regex, grammar=job.grammar)
        self._is_shaped = bool(job.answer_shapes)
        self._splits_struct = job.output_mode == "columns"
        self._postprocess = postprocess
        taken = [*input_columns, folder_column(job.slice_path) or ""]
        self._taken_names = {name.casefold() for name in taken}
        self._declared = declared_columns(postprocess, self._column) if postprocess else {}
        self._agreed = AgreedColumns(self._declared)
        for name in filter(self._is_taken, self._declared):
            raise SliceError(f"postprocess {self._describe_taken(name)}", kind="input")

    def agreeing_in(self, url: str, folder: str) -> AnswerParser:
        """A parser that agrees on the types of postprocess's columns with all others of a checkpoint."""
        parser = copy.copy(self)
        parser._agreed = AgreedColumns(self._declared, url, folder)
        return parser

    @property
    def needs_row(self) -> bool:
        """Whether answers must carry their input row."""
        return self._postprocess is not None

    @property
    def fields(self) -> list[pa.Field] | None:
        """Published columns; None when only the postprocess function knows them."""
        if self._postprocess is not None:
            return None
        if self._splits_struct:
            assert self._schema is not None
            return [*self._schema.type, *self._beside]
        kind = self._schema.type if self._schema else pa.string()
        return [self._details.answer_field(self._column, kind), *self._beside]

    @property
    def known_fields(self) -> list[pa.Field]:
        """Published columns that are known before there is an answer."""
        declared = [pa.field(name, arrow_type(kind)) for name, kind in self._declared.items()]
        return self.fields if self.fields is not None else declared

    def __call__(self, answers: pa.Table) -> tuple[pa.Table, pa.Table]:
        indices: list[int] = []
        values: list[Any] = []
        beside: list[list[Any]] = []
        failures: list[Failure] = []
        problems: dict[int, str] = {}  # of invalid answers
        columns = [answers.column(name).to_pylist() for name in ("numbers", "error_type", "error")]
        rows = answers.column("__row").to_pylist() if self._postprocess else []
        of_rows = zip(self._details.read(answers), *columns, strict=True)
        for i, (said, numbers, error_type, error) in enumerate(of_rows):
            if error is not None:
                failures.append(engine_failure(i, error_type, error))
                continue
            details = self._details.values(said)
            if numbers is not None:
                assert self._choices is not None
                label, details = label_confidence.most_probable(self._choices, numbers)
                said = [Said(label)]
            of_texts: list[Any] = []
            try:
                for answer in said:
                    of_texts.append(self._parse(answer.text, was_cut=answer.was_cut))
                value = self._details.join(of_texts)
            except InvalidOutput as e:
                which = f" {len(of_texts) + 1} of {len(said)}" if len(said) > 1 else ""
                cut = " (max_tokens cut it)" if answer.was_cut else ""
                message = f"the answer{which} {e}{cut}: {answer.text!r}"
                failures.append((i, TRUNCATED_ANSWER if answer.was_cut else INVALID_OUTPUT, message))
                problems[i] = str(e)
                continue
            except Exception as e:  # a schema's own error
                failures.append((i, INVALID_OUTPUT, f"output_schema: {describe_error(e)}"))
                problems[i] = "is not valid by output_schema"
                continue
            if self._postprocess is not None:
                try:
                    value = self._process(i, rows[i], value, details)
                except Exception as e:
                    failures.append((i, type(e).__name__, f"postprocess: {describe_error(e)}"))
                    continue
            indices.append(i)
            values.append(value)
            beside.append(details)
        if self._postprocess is None:
            published = self._build_answers(values, beside)
        else:
            published, indices, mismatches = self._fit_columns(values)
            failures += mismatches
        answered = answers.take(pa.array(indices, pa.int64()))
        parsed = {f.name: answered.column(f.name).cast(f.type) for f in ROW_ID_FIELDS} | published
        # An answer of a valid shape is whole, even when max_tokens came with its last character.
        truncated = pc.and_(pc.equal(answered.column("finish_reason"), "length"), not self._is_shaped)
        counted = answered.append_column("truncated", truncated)
        for field in COUNT_FIELDS:
            parsed[field.name] = counted.column(field.name.removeprefix("__")).cast(field.type)
        return pa.table(parsed), failed_attempts(answers, failures, problems)

    def _build_answers(self, values: list[Any], beside: list[list[Any]]) -> dict[str, pa.Array]:
        """:param beside: of each value, the columns beside it."""
        assert self.fields is not None
        if self._splits_struct:
            assert self._schema is not None
            answers = pa.array(values, self._schema.type)
            columns = dict(zip(answers.type.names, answers.flatten(), strict=True))
        else:
            columns = {self._column: pa.array(values, self.fields[0].type)}
        for n, field in enumerate(self._beside):
            columns[field.name] = pa.array([details[n] for details in beside], field.type)
        return columns

    def _parse(self, text: str | None, *, was_cut: bool) -> Any:
        """:raises InvalidOutput: for an answer without its shape."""
        if self._choices is not None and text not in self._choices:
            raise InvalidOutput("is none of the choices")
        if text is None:
            raise InvalidOutput("is missing")
        if self._grammar is not None:
            self._grammar.check(text, was_cut=was_cut)
        return text if self._schema is None else self._schema.parse(text)

    def _process(self, index: int, row: str, value: Any, details: list[Any]) -> _Result:
        assert self._postprocess is not None
        beside = {f.name: v for f, v in zip(self._beside, details, strict=False)}
        result = self._postprocess({**json.loads(row), self._column: value, **beside})
        fields = as_mapping(result)
        columns: dict[str, tuple[ValueType, Any]] = {}
        for name, field in (fields if fields is not None else {self._column: result}).items():
            try:
                _, plain_name = typed(name)
                if not isinstance(plain_name, str) or not plain_name:
                    raise TypeMismatch("names of columns must be text")
                columns[plain_name] = typed(field)
            except TypeMismatch as e:
                raise TypeMismatch(f"returned {brief(field)} for the column {brief(name)}: {e}") from e
        return _Result(index, columns, next(filter(self._is_taken, columns), None))

    def _fit_columns(self, results: list[_Result]) -> tuple[dict[str, pa.Array], list[int], list[Failure]]:
        """Columns of the rows that fit, these rows, and the others' failures."""
        fitting: list[_Result] = []
        failures: list[Failure] = []

        def widen(known: ColumnTypes) -> ColumnTypes:
            fitting.clear()
            failures.clear()
            types, preferred = known, _preferred(known, results)
            for result in results:
                try:
                    if result.taken_name is not None:
                        raise TypeMismatch(self._describe_taken(result.taken_name))
                    types = _widen(types, result, preferred)
                    fitting.append(result)
                except TypeMismatch as e:
                    failures.append((result.row, TYPE_MISMATCH, f"postprocess: {e}"))
            if len(results) > 1 and not known and all(r.taken_name is not None for r in results):
                # Not one row's data, but what the function does.
                raise SliceError(
                    f"postprocess {self._describe_taken(str(results[0].taken_name))}", kind="input"
                )
            return types

        types = self._agreed.agree(widen)
        try:
            columns = _build_columns(types, fitting)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):  # of one row's value
            stored = []
            for result in fitting:
                try:
                    _build_columns(types, [result])
                    stored.append(result)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as e:
                    failures.append((result.row, TYPE_MISMATCH, f"postprocess: {describe_error(e)}"))
            fitting = stored
            columns = _build_columns(types, fitting)
        return columns, [result.row for result in fitting], failures

    def _is_taken(self, name: str) -> bool:
        return name.startswith("__") or name.casefold() in self._taken_names

    def _describe_taken(self, name: str) -> str:
        why = (
            "the provider reserves names that begin with __"
            if name.startswith("__")
            else "the input or its folder has it too"
        )
        return f"returned the column {name!r}: {why}. Return it under another name"


def engine_failure(index: int, error_type: str | None, error: str) -> Failure:
    """A row that failed in the engine."""
    kind = PROMPT_TOO_LONG if _TOO_LONG.search(error) else error_type or "EngineError"
    return index, kind, error


def failed_attempts(answers: pa.Table, failures: list[Failure], problems: dict[int, str]) -> pa.Table:
    """The failed rows, with what the engine did for them.

    :param problems: of invalid answers, by row.
    """
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


def _preferred(known: ColumnTypes, results: list[_Result]) -> ColumnTypes:
    """The commonest types of columns whose type is not known."""
    kinds: dict[str, list[ValueType]] = {}
    for result in results:
        for name, (kind, _) in result.columns.items():
            if known.get(name, "null") == "null":
                kinds.setdefault(name, []).append(kind)
    return {name: commonest(of_column) for name, of_column in kinds.items()}


def _widen(types: ColumnTypes, result: _Result, preferred: ColumnTypes) -> ColumnTypes:
    """The types that hold a row's values too.

    :raises TypeMismatch: naming the column, its type and the value.
    """
    widened = types
    for name, (kind, value) in result.columns.items():
        if types.get(name) == kind:
            continue
        column = types.get(name, "null")
        if column == "null":
            column = preferred[name]
        try:
            merged = merge(column, kind)
        except TypeMismatch as e:
            raise TypeMismatch(
                f"the column {name!r} is {describe(column)}, and this row's value is {brief(value)}: {e}. "
                "The first answers decide what postprocess's return annotation leaves open"
            ) from e
        if name not in types or merged != types[name]:
            widened = {**widened, name: merged}
    if widened is not types and count_fields(widened) > _MAX_FIELDS:
        raise TypeMismatch(f"the table would have more than {_MAX_FIELDS:,} columns and fields")
    return widened


def _build_columns(types: ColumnTypes, results: list[_Result]) -> dict[str, pa.Array]:
    return {
        name: pa.array([_column_value(result, name, kind) for result in results], arrow_type(kind))
        for name, kind in types.items()
    }


def _column_value(result: _Result, name: str, kind: ValueType) -> Any:
    own_kind, value = result.columns.get(name, ("null", None))
    return value if own_kind == kind else coerce(value, kind)
