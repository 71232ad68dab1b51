"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.support.kube.errors import ApiError


def merge(item: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(item) if isinstance(item, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def apply(item: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """:raises ApiError: 422, if an operation cannot be applied"""
    patched = deepcopy(item)
    for operation in operations:
        try:
            _apply(patched, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            message = "the server rejected our request due to an error in our request"
            raise ApiError(422, message, "Invalid") from error
    return patched


def _apply(root: dict[str, Any], operation: dict[str, Any]) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    place: Any = root
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if isinstance(place, list):
        index = len(place) if last == "-" else int(last)
        match operation["op"]:
            case "add":
                place.insert(index, operation["value"])
            case "replace":
                place[index] = operation["value"]
            case "remove":
                del place[index]
            case _:
                _expect(place[index], operation)
        return
    match operation["op"]:
        case "add":
            place[last] = operation["value"]
        case "replace":
            _ = place[last]
            place[last] = operation["value"]
        case "remove":
            del place[last]
        case _:
            _expect(place[last], operation)


def _expect(value: Any, operation: dict[str, Any]) -> None:
    if operation["op"] != "test" or value != operation["value"]:
        raise ValueError(operation)
