"""JSON schemas of answers: what one may refer to, and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Dialects that validators know offline.
DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema", "http://json-schema.org/draft-03/schema",
)  # fmt: skip
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
#: Keywords whose values are data, and those whose values are schemas by name.
_DATA = {"enum", "const", "default", "examples"}
_BY_NAME = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
}  # fmt: skip

#: Of which a schema that asks for something has one.
_KEYWORDS = {
    "type", "enum", "const", "properties", "patternProperties", "additionalProperties", "required", "items",
    "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "$defs", "definitions", *REFERENCES,
}  # fmt: skip
#: Those with which an object, or a value, may be more than it says.
_OPENING = {
    "allOf", "not", "if", "then", "else", "patternProperties", "propertyNames", "dependentSchemas",
    "dependencies", "unevaluatedProperties", "unevaluatedItems", "contains", "$dynamicRef", "$recursiveRef",
}  # fmt: skip
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")


def check_is_schema(schema: Mapping[str, Any]) -> None:
    """:raises ValueError: for properties alone: as a schema they would permit any answer."""
    are_properties = all(isinstance(value, Mapping) or value in _TYPES for value in schema.values())
    if schema and are_properties and not schema.keys() & _KEYWORDS:
        raise ValueError(
            f"{sorted(schema)} are no keywords of a JSON schema: put properties into "
            "{'type': 'object', 'properties': {'name': {'type': 'string'}}}"
        )


def subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas inside it."""
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, Mapping):
            yield node
            for keyword, value in node.items():
                if keyword in _BY_NAME and isinstance(value, Mapping):
                    pending += value.values()
                elif keyword not in _DATA:
                    pending.append(value)


def is_closed(schema: Mapping[str, Any]) -> bool:
    """Whether each value has a type, and each object a fixed set of properties."""
    return not any(_is_open(part) for part in _value_schemas(schema))


def _value_schemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schema and those inside it, each of which describes a value."""
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        yield part
        if not isinstance(part, Mapping):
            continue
        for keyword in ("items", "additionalProperties"):
            if isinstance(part.get(keyword), Mapping):
                pending.append(part[keyword])
        for keyword in ("anyOf", "oneOf", "prefixItems"):
            pending += part.get(keyword) or []
        for keyword in ("properties", "$defs", "definitions"):
            pending += (part.get(keyword) or {}).values()


def _is_open(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return part is not False
    if part.keys() & _OPENING:
        return True
    if part.keys() & {"enum", "const", "$ref", "anyOf", "oneOf"}:
        return False
    kinds = part.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind == "object" and (not part.get("properties") or part.get("additionalProperties")):
            return True
        if kind == "array" and not (part.get("items") or part.get("prefixItems")):
            return True
    return not kinds


def resolve_pointer(schema: Mapping[str, Any], reference: str) -> Any:
    """The part of a schema that `#/...` names; None when there is none."""
    target: Any = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            target = target.get(name) if isinstance(target, Mapping) else None
    return target


def check_is_self_contained(schema: Mapping[str, Any]) -> None:
    """:raises ValueError: when a validator would have to fetch something, or does not know the dialect."""
    parts = list(subschemas(schema))
    has_ids = any(isinstance(part.get("$id"), str) for part in parts if part is not schema)
    for part in parts:
        dialect = part.get("$schema")
        if isinstance(dialect, str) and dialect.rstrip("#") not in DIALECTS:
            raise ValueError(
                f"$schema is {dialect!r}, a dialect that is not known: leave it out, or use {DIALECTS[0]!r}"
            )
        for keyword in REFERENCES:
            reference = part.get(keyword)
            if not isinstance(reference, str):
                continue
            if not reference.startswith("#"):
                raise ValueError(
                    f"{keyword} is {reference!r}, and nothing is fetched for a schema: put that schema under "
                    "$defs, and refer to it as '#/$defs/NAME'"
                )
            is_pointer = keyword == "$ref" and reference.startswith("#/") and not has_ids
            if is_pointer and resolve_pointer(schema, reference) is None:
                raise ValueError(f"$ref is {reference!r}, which is not in the schema")
