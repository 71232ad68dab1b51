"""From an engine's text to the columns that are published.

What an answer must be is known before the first one comes: a text, one of `choices`, or JSON of
`output_schema`. A row whose answer is not what it must be (cut at max_tokens, say), or whose postprocess
fails, has failed for its own reason: it goes to quarantine and stops no other row.
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

#: Error types of answers that are not what they must be; the second because max_tokens cut them.
INVALID_ANSWER, TRUNCATED_ANSWER = "InvalidAnswer", "TruncatedAnswer"
#: Of prompts that the engine refuses for their length, in vLLM's words.
PROMPT_TOO_LONG = "PromptTooLong"
_TOO_LONG = re.compile(r"longer than the maximum|maximum context length|exceeds[^.]*max_model_len")

_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


class AnswerParser:
    """Turns a table of answers into a table of row ids, published columns and tokens, and one of failed rows.

    Picklable: it runs in the tasks that take rows from the engine.
    """

    def __init__(self, job: SliceJob, postprocess: Callable[[dict[str, Any]], Any] | None) -> None:
        self._column = job.output_column
        self._choices = frozenset(job.choices) if job.choices else None
        self._type = arrow_type(job.output_schema) if job.output_schema is not None else pa.string()
        self._schema = job.output_schema
        self._postprocess = postprocess

    @property
    def needs_row(self) -> bool:
        """Whether answers must come with the row that they answer."""
        return self._postprocess is not None

    @property
    def fields(self) -> list[pa.Field] | None:
        """Published columns; None when only the postprocess function knows them."""
        return [pa.field(self._column, self._type)] if self._postprocess is None else None

    def __call__(self, answers: pa.Table) -> tuple[pa.Table, pa.Table]:
        good: list[int] = []
        values: list[Any] = []
        failures: list[tuple[int, str, str]] = []
        errors = answers.column("error").to_pylist()
        kinds = answers.column("error_type").to_pylist()
        rows = answers.column("__row").to_pylist() if self._postprocess else []
        cut = [reason == "length" for reason in answers.column("finish_reason").to_pylist()]
        for i, text in enumerate(answers.column("text").to_pylist()):
            if errors[i] is not None:
                kind = PROMPT_TOO_LONG if _TOO_LONG.search(errors[i]) else kinds[i] or "EngineError"
                failures.append((i, kind, errors[i]))
            elif (value := self._parse(text)) is None:
                kind, why = (TRUNCATED_ANSWER, " (max_tokens cut it)") if cut[i] else (INVALID_ANSWER, "")
                failures.append((i, kind, f"{self._wanted}{why}: {text!r}"))
            else:
                if self._postprocess is not None:
                    try:
                        value = self._process(rows[i], value)
                    except SliceError:
                        raise
                    except Exception as e:
                        failures.append((i, type(e).__name__, f"postprocess: {e}"))
                        continue
                good.append(i)
                values.append(value)
        taken = answers.take(pa.array(good, pa.int64()))
        columns = {f.name: taken.column(f.name).cast(f.type) for f in ROW_ID_FIELDS}
        columns |= self._columns(values)
        counts = {f.name: taken.column(f.name[2:]) for f in COUNT_FIELDS if f.name != "__truncated"}
        # What is valid by its shape is whole, also when max_tokens came with its last character.
        whole = self._choices is not None or self._schema is not None
        reasons = taken.column("finish_reason")
        counts["__truncated"] = pc.and_(pc.equal(reasons, "length"), not whole)
        columns |= {f.name: counts[f.name].cast(f.type) for f in COUNT_FIELDS}
        return pa.table(columns), failed_table(answers, failures)

    def _parse(self, text: str | None) -> Any:
        """The answer's value, None for what is none."""
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
    def _wanted(self) -> str:
        if self._choices is not None:
            return "the answer is none of the choices"
        return "the answer is not valid by output_schema" if self._schema is not None else "no answer"

    @cached_property
    def _validator(self) -> jsonschema.protocols.Validator:
        assert self._schema is not None
        return jsonschema.validators.validator_for(self._schema)(self._schema)

    def _process(self, row: str, value: Any) -> Mapping[str, Any]:
        assert self._postprocess is not None
        made = self._postprocess({**json.loads(row), self._column: value})
        made = made if isinstance(made, Mapping) else {self._column: made}
        if taken := [n for n in made if str(n).startswith("__")]:
            raise SliceError(
                f"postprocess returned the column {taken[0]!r}: names that begin with __ are the provider's",
                kind="input",
            )
        return made

    def _columns(self, values: list[Any]) -> dict[str, pa.Array]:
        if self._postprocess is None:
            return {self._column: pa.array(values, self._type)}
        names = list(dict.fromkeys(name for row in values for name in row))
        try:
            return {name: pa.array([row.get(name) for row in values]) for name in names}
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(
                f"postprocess returned values of different types for one column: {e}", kind="input"
            ) from e


def arrow_type(schema: Mapping[str, Any]) -> pa.DataType:
    """The Arrow type of a JSON schema's values: a struct where the schema says all of it, else JSON as
    text."""
    found = _arrow_type(schema, schema)
    return found if found is not None and pa.types.is_struct(found) else pa.string()


def _arrow_type(node: Any, root: Mapping[str, Any]) -> pa.DataType | None:
    if not isinstance(node, Mapping):
        return None
    if "$ref" in node:
        parts = str(node["$ref"]).removeprefix("#/").split("/")
        target: Any = root
        for part in parts:
            target = target.get(part) if isinstance(target, Mapping) else None
        # A schema that contains itself has no Arrow type.
        return (
            None
            if target is None or target is node or "$ref" in json.dumps(target)
            else _arrow_type(target, root)
        )
    if "enum" in node or "const" in node:
        values = node.get("enum", [node.get("const")])
        return pa.string() if all(isinstance(v, str) for v in values) else None
    if options := node.get("anyOf") or node.get("oneOf"):
        kinds = [
            _arrow_type(o, root) for o in options if not (isinstance(o, Mapping) and o.get("type") == "null")
        ]
        return kinds[0] if len(kinds) == 1 else None
    kind = node.get("type")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), None) if len(set(kind) - {"null"}) == 1 else None
    if kind == "array":
        items = _arrow_type(node.get("items"), root)
        return pa.list_(items) if items is not None else None
    if kind == "object":
        properties = node.get("properties")
        if not isinstance(properties, Mapping) or not properties or node.get("additionalProperties"):
            return None
        fields = {name: _arrow_type(p, root) for name, p in properties.items()}
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return _SCALARS.get(kind) if isinstance(kind, str) else None
