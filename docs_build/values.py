"""Types, defaults and limits, as people read them, and tables of Markdown. Pure."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

#: Names of types in the operator's signature and groups, as people write the values.
_WRITTEN = {
    "Later": "text", "Text": "text", "Path": "path", "Duration": "duration", "str": "text", "int": "number",
    "float": "number", "bool": "True or False", "time": "time of day", "timedelta": "timedelta",
}  # fmt: skip
#: What any argument may be that is rendered: a template, or an upstream task's output.
_RENDERED = ("Later", "XComArg")
_OF_JSON = {str: "text", int: "integer", float: "number", bool: "true or false", dict: "object"}
_BOUNDS: dict[type, tuple[str, str]] = {
    annotated_types.Ge: ("at least", "ge"),
    annotated_types.Gt: ("over", "gt"),
    annotated_types.Le: ("at most", "le"),
}


def written_type(annotation: str, groups: Iterable[str]) -> str:
    """A type of the signature, as people write its values.

    :param groups: which have a section of their own to link to.
    """
    parts = [part.strip() for part in re.split(r" \| (?![^\[]*\])", annotation)]
    parts = [part for part in parts if part != "None"]
    named = [part for part in parts if part not in _RENDERED] or parts[:1]
    return " or ".join(dict.fromkeys(_written(part, groups) for part in named))


def _written(part: str, groups: Iterable[str]) -> str:
    name, _, inner = part.partition("[")
    if name == "Literal":
        return ", ".join(f"`{value.strip()}`" for value in inner.rstrip("]").replace("'", '"').split(","))
    if name in ("Mapping", "dict"):
        return "dict"
    if name in ("Sequence", "list", "tuple"):
        return "list"
    if name == "type":
        return "class"
    return f"[group](#{name.lower()})" if name.lower() in groups else _WRITTEN[name]


def json_type(annotation: Any) -> str:
    """A field's type, as JSON has it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return json_type(parts[0])
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys("null" if p is types.NoneType else json_type(p) for p in parts))
    if origin is tuple:
        return "list"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object"
    return _OF_JSON[origin or annotation]


def limits(field: FieldInfo) -> str:
    bounds = [(_BOUNDS[type(m)], m) for m in field.metadata if type(m) in _BOUNDS]
    return ", ".join(f"{word} {getattr(bound, name):,}" for (word, name), bound in bounds)


def python_default(value: Any) -> str:
    """Empty where the default says that there is none."""
    if isinstance(value, str) and value:
        return f'`"{value}"`'
    return "" if _is_none(value) else f"`{value!r}`"


def json_default(value: Any) -> str:
    return "" if _is_none(value) else f"`{json.dumps(value)}`"


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, BaseModel) or (hasattr(value, "__len__") and not value)


def paragraph(text: str | None) -> str:
    return " ".join((text or "").split())


def cell(text: str | None) -> str:
    """A text in one line, without what a table or HTML would take it for."""
    spans = paragraph(text).replace("|", r"\|").split("`")
    spans[::2] = [span.replace("<", "&lt;") for span in spans[::2]]
    return "`".join(spans)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
