"""The shape that an answer must have: as vLLM's sampling parameter, and as an Arrow type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec import SliceJob

_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


def structured_outputs(job: SliceJob) -> dict[str, Any] | None:
    """vLLM's `structured_outputs` for the shape of the job's answers; None for free text."""
    if job.choices is not None:
        return {"choice": list(job.choices)}
    if job.output_schema is not None:
        return {"json": json.dumps(job.output_schema)}
    if job.regex is not None:
        return {"regex": job.regex}
    return {"grammar": job.grammar} if job.grammar is not None else None


def arrow_type(schema: Mapping[str, Any]) -> pa.DataType:
    """The Arrow type of a JSON schema's values: a struct where the schema fixes every field, else string, for
    JSON text."""
    kind = _arrow_type(schema, schema)
    return kind if kind is not None and pa.types.is_struct(kind) else pa.string()


def _arrow_type(node: Any, root: Mapping[str, Any]) -> pa.DataType | None:
    if not isinstance(node, Mapping):
        return None
    if "$ref" in node:
        target: Any = root
        for part in str(node["$ref"]).removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        # A schema that contains itself has no Arrow type.
        recursive = target is None or target is node or "$ref" in json.dumps(target)
        return None if recursive else _arrow_type(target, root)
    if "enum" in node or "const" in node:
        values = node.get("enum", [node.get("const")])
        return pa.string() if all(isinstance(v, str) for v in values) else None
    if options := node.get("anyOf") or node.get("oneOf"):
        options = [o for o in options if not (isinstance(o, Mapping) and o.get("type") == "null")]
        return _arrow_type(options[0], root) if len(options) == 1 else None
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = set(kind) - {"null"}
        kind = kinds.pop() if len(kinds) == 1 else None
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
