"""From an engine's text, or label, to published columns.

The job fixes what an answer must be: any text, one of `choices`, JSON that is valid by `output_schema`, or
text of a `regex` or `grammar`. A row whose answer is not valid (cut at max_tokens, say), whose postprocess
function raises, or whose values do not fit the columns of the other rows, has failed and stops no other row.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.row_errors import (
    COLUMN_NOT_IN_REQUEST,
    DEGENERATE_ANSWER,
    INVALID_OUTPUT,
    TRUNCATED_ANSWER,
)
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.classify import Classify
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.columns import (
    describe_error,
    describe_users_error,
    storable,
)
from airflow_provider_raydatallm.processor.input.listing import folder_column
from airflow_provider_raydatallm.processor.request.answers import label_confidence
from airflow_provider_raydatallm.processor.request.answers.details import AnswerDetails
from airflow_provider_raydatallm.processor.request.answers.grammar import AnswerGrammar
from airflow_provider_raydatallm.processor.request.answers.head_labels import head_labels
from airflow_provider_raydatallm.processor.request.answers.output_schema import AnswerSchema, InvalidOutput
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser, Failure, Parsed
from airflow_provider_raydatallm.processor.request.answers.return_types import declared_columns
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

#: Error types of invalid answers that lack their end, and the words for it, by `finish_reason`.
_OF_FINISH = {
    "length": (TRUNCATED_ANSWER, " (max_tokens cut it)"),
    "repetition": (DEGENERATE_ANSWER, " (the engine ended it, as it repeated itself)"),
}
#: Error type of postprocess results that do not fit the columns.
TYPE_MISMATCH = TypeMismatch.__name__
#: Columns and fields of a table: names that a model wrote must not widen it without end.
_MAX_FIELDS = 1000
_RENAME = "Return it under another name"


class _Result(NamedTuple):
    """What postprocess returned for a row: type and value by column."""

    row: int
    columns: dict[str, tuple[ValueType, Any]]
    #: A name in it that is not free.
    taken_name: str | None


class TextParser(AnswerParser):
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
        task = job.task
        self._choices = head_labels(job) if isinstance(task, Classify) else task.labels_of_answers
        self._is_multi_label = isinstance(task, Generate) and task.labels.multi
        self._details = AnswerDetails(job)
        #: Columns beside the answer.
        self._beside = [*label_confidence.fields(job), *self._details.fields]
        self._schema, self._grammar = None, None
        if isinstance(task, Generate) and task.output_schema is not None:
            self._schema = AnswerSchema(task.output_schema, task.output_mode)
        if isinstance(task, Generate) and (task.regex is not None or task.grammar is not None):
            self._grammar = AnswerGrammar(regex=task.regex, grammar=task.grammar)
        self._is_shaped = bool(task.shapes) or isinstance(task, Classify)
        self._splits_struct = job.splits_answers
        self._postprocess = postprocess
        self.needs_row = postprocess is not None
        self._input_columns = list(input_columns)
        taken = [*input_columns, folder_column(job.slice_path) or ""]
        self._taken_names = {name.casefold() for name in taken}
        self._declared = declared_columns(postprocess, self._column) if postprocess else {}
        self._agreed = AgreedColumns(self._declared)
        for name in filter(self._is_taken, self._declared):
            raise SliceError(f"postprocess {self._describe_taken(name)}", kind="input", advice=_RENAME)

    def agreeing_in(self, url: str, folder: str) -> TextParser:
        """A parser that agrees on the types of postprocess's columns with all others of a checkpoint."""
        parser = copy.copy(self)
        parser._agreed = AgreedColumns(self._declared, url, folder)
        return parser

    @property
    def fields(self) -> list[pa.Field] | None:
        """Published columns; None when only the postprocess function knows them."""
        if self._postprocess is not None:
            return None
        if self._splits_struct:
            assert self._schema is not None
            return [*self._schema.type, *self._beside]
        kind = self._schema.type if self._schema else pa.string()
        if self._is_multi_label:
            kind = pa.list_(kind)
        return [self._details.answer_field(self._column, kind), *self._beside]

    @property
    def known_fields(self) -> list[pa.Field]:
        """Published columns that are known before there is an answer."""
        declared = [pa.field(name, arrow_type(kind)) for name, kind in self._declared.items()]
        return self.fields if self.fields is not None else declared

    def _parse(self, answers: pa.Table, answered: np.ndarray) -> Parsed:
        indices: list[int] = []
        values: list[Any] = []
        beside: list[list[Any]] = []
        failures: list[Failure] = []
        problems: dict[int, str] = {}
        rows = answers.take(pa.array(answered))
        names = ("numbers", *(["__row"] if self.needs_row else []))
        columns = [rows.column(name).to_pylist() for name in names]
        of_rows = zip(answered.tolist(), self._details.read(rows), *columns, strict=True)
        for i, said, numbers, *row in of_rows:
            details = self._details.values(said)
            of_texts: list[Any] = []
            answer = said[0]
            try:
                if numbers is not None:
                    assert self._choices is not None
                    value, details = label_confidence.read_labels(
                        self._choices, numbers, are_several=self._is_multi_label
                    )
                else:
                    for answer in said:
                        of_texts.append(self._parse_text(answer.text, was_cut=answer.was_cut))
                    value = self._details.join(of_texts)
            except InvalidOutput as e:
                which = f" {len(of_texts) + 1} of {len(said)}" if len(said) > 1 else ""
                kind, cut = _OF_FINISH.get(answer.finish_reason or "", (INVALID_OUTPUT, ""))
                failures.append((i, kind, f"the answer{which} {e}{cut}: {answer.text!r}"))
                problems[i] = storable(str(e))  # it quotes names that the model wrote
                continue
            except SliceError:
                raise
            except Exception as e:  # a schema's own error
                failures.append((i, INVALID_OUTPUT, f"output_schema: {describe_error(e)}"))
                problems[i] = "is not valid by output_schema"
                continue
            if self._postprocess is not None:
                try:
                    value = self._process(i, row[0], value, details)
                except Exception as e:
                    failures.append((i, *self._describe_error(e, row[0])))
                    continue
            indices.append(i)
            values.append(value)
            beside.append(details)
        if self._postprocess is None:
            return Parsed(indices, self._build_answers(values, beside), failures, problems)
        published, fitting, mismatches = self._fit_columns(values)
        return Parsed(fitting, published, failures + mismatches, problems)

    def _ended_by(self, rows: pa.Table, finish_reason: str) -> pa.Array:
        # An answer of a valid shape is whole, even when max_tokens came with its last character.
        # Where no end is named it may be an invalid answer that was cut, which nobody counts.
        return pc.and_(pc.equal(rows.column("finish_reason"), finish_reason), not self._is_shaped)

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

    def _parse_text(self, text: str | None, *, was_cut: bool) -> Any:
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

    def _describe_error(self, error: Exception, row: str) -> tuple[str, str]:
        """
        :param row: what postprocess got of the input.
        """
        text = describe_users_error("postprocess", error)
        name = error.args[0] if isinstance(error, KeyError) and error.args else None
        if isinstance(name, str) and name in self._input_columns and name not in (own := json.loads(row)):
            names = ", ".join(map(repr, own)) or "none"
            return COLUMN_NOT_IN_REQUEST, f"{text}: its row has the columns of the request only ({names})"
        return type(error).__name__, text

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
                        raise TypeMismatch(f"{self._describe_taken(result.taken_name)}. {_RENAME}")
                    types = _widen(types, result, preferred)
                    fitting.append(result)
                except TypeMismatch as e:
                    failures.append((result.row, TYPE_MISMATCH, f"postprocess: {e}"))
            if len(results) > 1 and not known and all(r.taken_name is not None for r in results):
                # Not one row's data, but what the function does.
                raise SliceError(
                    f"postprocess {self._describe_taken(str(results[0].taken_name))}",
                    kind="input",
                    advice=_RENAME,
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
        return f"returned the column {name!r}: {why}"


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
