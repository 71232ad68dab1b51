"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from tests.support.kube.errors import ApiError

Selector = Callable[[dict[str, Any]], bool]

_REQUIREMENT = re.compile(
    r"(?P<key>[\w./-]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)


def selector(labels: str, fields: str, known_fields: Collection[str]) -> Selector:
    """Returns what an object must be to be listed or watched."""
    checks = [_label_check(part) for part in _split(labels)]
    checks += [_field_check(part, known_fields) for part in _split(fields)]
    return lambda item: all(check(item) for check in checks)


def _split(text: str) -> list[str]:
    """Splits at the commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label_check(part: str) -> Selector:
    absent = part.startswith("!")
    match = _REQUIREMENT.fullmatch(part[1:] if absent else part)
    if match is None:
        raise ApiError(400, f'unable to parse requirement: found "{part}"')
    key, op, kind = match["key"], match["op"], match["set"]
    if op is None and kind is None:
        return lambda item: (key in _labels(item)) != absent
    values = {match["value"]} if op else {value.strip() for value in match["values"].split(",")}
    if op == "!=" or kind == "notin":
        return lambda item: _labels(item).get(key) not in values
    return lambda item: _labels(item).get(key) in values


def _labels(item: dict[str, Any]) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def _field_check(part: str, known_fields: Collection[str]) -> Selector:
    match = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", part)
    if match is None:
        raise ApiError(400, f'invalid field selector: "{part}"')
    path, op, value = match.groups()
    if path not in known_fields:
        raise ApiError(400, f"field label not supported: {path}")

    def check(item: dict[str, Any]) -> bool:
        found: Any = item
        for name in path.split("."):
            found = (found or {}).get(name)
        return ((found or "") == value) == (op != "!=")

    return check
