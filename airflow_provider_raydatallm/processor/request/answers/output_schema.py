"""The shape that an answer must have: as vLLM's sampling parameter, as a validator, and as an Arrow type.

An answer is published as a struct when the schema fixes every field: an object with `properties` whose types
have Arrow types, which does not say that it permits more (`additionalProperties`, `patternProperties`,
`allOf`, ...). JSON Schema permits more keys by default, and a struct would drop them: an answer with such a
key is invalid. Answers to all other schemas are published as their JSON text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import jsonschema
import pyarrow as pa
import referencing

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.json_schema import resolve_pointer, subschemas
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.request.answers.limits.keywords import LimitedKeywords
from airflow_provider_raydatallm.processor.request.answers.limits.patterns import check_pattern
from airflow_provider_raydatallm.processor.value_types import MAX_DEPTH

_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_ANNOTATIONS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$defs", "definitions",
}  # fmt: skip
#: Keywords beside `properties` that may name more properties.
_OPENING = {
    "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies", "patternProperties",
    "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
}  # fmt: skip
_EXACT_INT = 2**53
#: Characters of what a validator says about an answer, which it quotes.
_MAX_PROBLEM = 200


class InvalidOutput(ValueError):
    """An answer does not have its shape. The message says why."""


def structured_outputs(job: SliceJob) -> dict[str, Any] | None:
    """vLLM's `structured_outputs` for the shape of the job's answers; None for free text."""
    task = job.task
    if not isinstance(task, Generate):
        return None
    if task.choices is not None:
        return {"choice": list(task.choices)}
    if task.output_schema is not None:
        shape = {"json": json.dumps(task.output_schema)}
        return {**shape, "disable_any_whitespace": task.is_compact} if job.engine.bounds_json else shape
    if task.regex is not None:
        return {"regex": task.regex}
    return {"grammar": task.grammar} if task.grammar is not None else None


class AnswerSchema:
    """Parses answers that are JSON of a schema. Picklable and thread-safe.

    :param mode: how they are published.
    :raises SliceError: when the schema is not valid, its patterns cannot be evaluated within a limit, or it
        leaves fields open and has to be columns.
    """

    def __init__(
        self, schema: Mapping[str, Any], mode: Literal["columns", "struct", "json"] = "struct"
    ) -> None:
        self._schema = schema
        self._mode = mode
        _check(schema)
        # A struct that is null could not be told from a row without an answer.
        self.type = pa.string() if self._takes_null() or mode == "json" else arrow_type(schema)
        if mode == "columns":
            _check_columns(self.type)

    def __reduce__(self) -> tuple[Any, ...]:
        return AnswerSchema, (self._schema, self._mode)

    def parse(self, text: str) -> Any:
        """The answer's value as `type` takes it: a dict for a struct, else the text itself.

        :raises InvalidOutput: also when the struct would change the value.
        """
        try:
            value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as e:
            raise InvalidOutput(f"is not valid JSON: {e}") from e
        try:
            if not self._is_valid(value):
                raise InvalidOutput(f"is not valid by output_schema: {self._find_problem(value)}")
        except TimeoutError as e:
            raise InvalidOutput("takes too long to check by output_schema") from e
        except RecursionError as e:
            raise InvalidOutput("is nested too deeply") from e
        return text if self.type == pa.string() else _fit(value, self.type, "")

    def _takes_null(self) -> bool:
        """:raises SliceError: when the schema is a circle, or nothing can be checked by it."""
        try:
            return self._is_valid(None)
        except TimeoutError as e:
            raise SliceError(
                "output_schema takes too long to check any answer: it refers to itself too often",
                kind="input",
            ) from e
        except RecursionError as e:
            raise SliceError(
                "output_schema has a $ref that leads back to itself, and so describes nothing", kind="input"
            ) from e

    def _is_valid(self, value: Any) -> bool:
        self._keywords.start_row()
        return bool(self._validator.is_valid(value))

    def _find_problem(self, value: Any) -> str:
        """Such as "$.age: 200 is greater than the maximum of 120"."""
        self._keywords.start_row()
        error: Any = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        return f"{error.json_path}: {error.message}"[:_MAX_PROBLEM]

    @cached_property
    def _keywords(self) -> LimitedKeywords:
        return LimitedKeywords()

    @cached_property
    def _validator(self) -> Any:
        dialect = jsonschema.validators.validator_for(self._schema)
        extend: Any = jsonschema.validators.extend
        registry: Any = referencing.Registry()  # retrieves nothing
        return extend(dialect, self._keywords.of(dialect))(self._schema, registry=registry)


def _check(schema: Mapping[str, Any]) -> None:
    try:
        any_format = jsonschema.FormatChecker(formats=())  # `regex` takes other patterns than `re`
        validator: Any = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema, format_checker=any_format)
    except jsonschema.SchemaError as e:
        raise SliceError(f"output_schema is not a valid JSON schema: {e.message}", kind="input") from e
    keywords: set[str] = set()
    for part in subschemas(schema):
        keywords |= part.keys()
        by_pattern = part.get("patternProperties")
        patterns = [part.get("pattern"), *(by_pattern if isinstance(by_pattern, Mapping) else ())]
        for pattern in patterns:
            if isinstance(pattern, str):
                check_pattern("output_schema has the pattern", pattern)
    if {"unevaluatedProperties", "patternProperties"} <= keywords:
        raise SliceError(
            "output_schema uses unevaluatedProperties together with patternProperties, which is not "
            "supported",
            kind="input",
            advice="Use additionalProperties",
        )


def _check_columns(kind: pa.DataType) -> None:
    """:raises SliceError: when the answers of a schema cannot be columns."""
    if not pa.types.is_struct(kind):
        raise SliceError(
            "output_mode is 'columns', and output_schema leaves open which properties an answer has, or of "
            "which types they are",
            kind="input",
            advice="Name and type all of them, or set output_mode='json'",
        )
    names = [field.name for field in kind]
    if reserved := [name for name in names if name.startswith("__") or not name]:
        raise SliceError(
            f"output_schema has the property {reserved[0]!r}, and no column can have that name",
            kind="input",
            advice="Rename it, or leave output_mode='columns' out",
        )
    folded = [name.casefold() for name in names]  # many readers do not tell them apart
    if twice := [name for name in names if folded.count(name.casefold()) > 1]:
        raise SliceError(
            f"output_schema has the properties {' and '.join(map(repr, twice))}, which make two columns of "
            "one name",
            kind="input",
            advice="Rename one, or leave output_mode='columns' out",
        )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _fit(value: Any, kind: pa.DataType, path: str) -> Any:
    """A valid value, as Arrow takes it without a change."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        types = {f.name: f.type for f in kind}
        if unknown := value.keys() - types.keys():
            raise InvalidOutput(
                f"has {path + sorted(unknown)[0]!r}, which output_schema does not name: name it, or set "
                "additionalProperties, which publishes answers as JSON text"
            )
        return {name: _fit(item, types[name], f"{path}{name}.") for name, item in value.items()}
    if pa.types.is_list(kind):
        return [_fit(item, kind.value_type, f"{path}[].") for item in value]
    name = path.rstrip(".")
    if kind == pa.int64():
        if not -(2**63) <= value < 2**63:
            raise InvalidOutput(f"has an integer of more than 64 bits in {name!r}")
        if isinstance(value, float) and abs(value) >= _EXACT_INT:  # written as 1e18, say
            raise InvalidOutput(
                f"has an integer in {name!r} that is written as a float, which cannot hold it"
            )
        return int(value)
    if kind == pa.float64():
        if (isinstance(value, int) and abs(value) > _EXACT_INT) or math.isinf(value):
            raise InvalidOutput(f"has a number in {name!r} that a 64-bit float cannot hold")
        return float(value)
    if kind == pa.string():
        try:
            value.encode()
        except UnicodeEncodeError as e:
            raise InvalidOutput(f"has a text in {name!r} that is not valid Unicode") from e
    return value


def arrow_type(schema: Mapping[str, Any]) -> pa.DataType:
    """The Arrow type of a JSON schema's values: a struct where the schema fixes every field, else string, for
    JSON text."""
    kind = _arrow_type(schema, schema, (), 0)
    return kind if kind is not None and pa.types.is_struct(kind) else pa.string()


def _arrow_type(node: Any, root: Mapping[str, Any], seen: tuple[str, ...], depth: int) -> pa.DataType | None:
    if not isinstance(node, Mapping) or depth > MAX_DEPTH or (depth and "$id" in node):
        return None
    keywords = node.keys() - _ANNOTATIONS - {"$id"}
    if "$ref" in node:
        reference = node["$ref"]
        # A schema that contains itself has no Arrow type.
        if keywords != {"$ref"} or reference in seen or not reference.startswith("#/"):
            return None
        return _arrow_type(resolve_pointer(root, reference), root, (*seen, reference), depth + 1)
    if "enum" in node or "const" in node:
        values = node["enum"] if "enum" in node else [node["const"]]
        return pa.string() if all(isinstance(v, str) or v is None for v in values) else None
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keywords == {keyword}:
            options = [o for o in node[keyword] if not (isinstance(o, Mapping) and o.get("type") == "null")]
            return _arrow_type(options[0], root, seen, depth + 1) if len(options) == 1 else None
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = set(kind) - {"null"}
        kind = kinds.pop() if len(kinds) == 1 else None
    if kind == "array":
        items = None if "prefixItems" in node else _arrow_type(node.get("items"), root, seen, depth + 1)
        return pa.list_(items) if items is not None else None
    if kind == "object":
        properties = node.get("properties")
        is_open = node.get("additionalProperties", False) is not False or keywords & _OPENING
        if not isinstance(properties, Mapping) or not properties or is_open:
            return None
        fields = {name: _arrow_type(p, root, seen, depth + 1) for name, p in properties.items()}
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return _SCALARS.get(kind) if isinstance(kind, str) else None
