"""Arguments as people write them, from leaves: `engine__kwargs={...}` is the leaf `kwargs` of the group
`engine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS


def written(**given: Any) -> dict[str, Any]:
    """Returns the arguments, each group as one dict."""
    return merged({}, **given)


def merged(arguments: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """Returns the arguments with others, and with leaves of groups, in their place."""
    result = dict(arguments)
    for name, value in given.items():
        group, separator, leaf = name.partition("__")
        if separator:
            result[group] = {**GROUPS[group].expand(group, result.get(group)), leaf: value}
        elif name == "engine" and isinstance(result.get(name), Mapping) and isinstance(value, str):
            result[name] = {**result[name], "kind": value}
        else:
            result[name] = value
    return result
