"""From an engine's text to the columns that are published.

What an answer must be is known before the first one comes: a text, one of `choices`, or JSON of
`output_schema`. An answer that is not what it must be (cut at max_tokens, say) becomes null and is counted as
invalid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jsonschema
import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.base import ROW_ID_FIELDS
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.spec import SliceJob

#: Columns of an answered row that are measured or needed on the way, and not published.
MEASURED = ("__input_tokens", "__output_tokens", "__engine_seconds", "__finished_at", "__invalid")

_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


class AnswerShape:
    """Turns a table of answers into a table of row ids, published columns and measures.

    Picklable: it runs in the tasks that take rows from the engine.
    """

    def __init__(
        self,
        job: SliceJob,
        postprocess: Callable[[dict[str, Any]], Any] | None,
        locate: Callable[[int, int], str],
    ) -> None:
        """:param locate: says where a row (unit, offset) is, for people."""
        self._column = job.output_column
        self._choices = frozenset(job.choices) if job.choices else None
        self._type = arrow_type(job.output_schema) if job.output_schema is not None else pa.string()
        self._schema = job.output_schema
        self._postprocess = postprocess
        self._locate = locate

    @property
    def fields(self) -> list[pa.Field] | None:
        """Published columns; None when only the postprocess function knows them."""
        return [pa.field(self._column, self._type)] if self._postprocess is None else None

    def __call__(self, answers: pa.Table) -> pa.Table:
        parsed = [self._parse(t) for t in answers.column("text").to_pylist()]
        invalid = pa.array([value is None for value in parsed], pa.bool_())
        if self._postprocess is None:
            published = {self._column: pa.array(parsed, self._type)}
        else:
            published = self._published(answers, parsed)
        columns = {f.name: answers.column(f.name).cast(f.type) for f in ROW_ID_FIELDS}
        measured = {n: answers.column(n[2:]) for n in MEASURED if n != "__invalid"}
        return pa.table({**columns, **published, **measured, "__invalid": invalid})

    def _parse(self, text: str | None) -> Any:
        if text is None or (self._choices is not None and text not in self._choices):
            return None
        if self._schema is None:
            return text
        try:
            value = json.loads(text)
            pa.array([value], self._type)
        except (ValueError, OverflowError, RecursionError, pa.ArrowException):
            return None
        if not self._validator.is_valid(value):
            return None
        return text if self._type == pa.string() else value

    @cached_property
    def _validator(self) -> jsonschema.protocols.Validator:
        assert self._schema is not None
        return jsonschema.validators.validator_for(self._schema)(self._schema)

    def _published(self, answers: pa.Table, parsed: list[Any]) -> dict[str, pa.Array]:
        assert self._postprocess is not None
        rows = []
        carried = answers.select(["__unit", "__offset", "__row"]).to_pylist()
        for row, value in zip(carried, parsed, strict=True):
            try:
                made = self._postprocess({**json.loads(row["__row"]), self._column: value})
            except Exception as e:
                where = self._locate(row["__unit"], row["__offset"])
                raise SliceError(f"postprocess failed on {where}: {type(e).__name__}: {e}") from e
            rows.append(made if isinstance(made, Mapping) else {self._column: made})
        names = list(dict.fromkeys(name for row in rows for name in row))
        if taken := [n for n in names if n.startswith("__")]:
            raise SliceError(
                f"postprocess returned the column {taken[0]!r}: names that begin with __ are the provider's"
            )
        try:
            return {name: pa.array([row.get(name) for row in rows]) for name in names}
        except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise SliceError(f"postprocess returned values of different types for one column: {e}") from e


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
