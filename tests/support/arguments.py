"""The operator's arguments from the spec's names, which are flat and the same in all tests."""

from __future__ import annotations

from typing import Any

from airflow_provider_raydatallm.contract.groups import GROUPS


def grouped(**flat: Any) -> dict[str, Any]:
    """Returns the arguments with those that are leaves of a group in their groups."""
    arguments = {name: value for name, value in flat.items() if name == "engine" or name not in _PLACES}
    for name, value in flat.items():
        if name in _PLACES and name != "engine":
            group, leaf = _PLACES[name]
            if isinstance(given := arguments.get(group, {}), str):
                given = {"kind": given}
            arguments[group] = {**given, leaf: value}
    return arguments


_PLACES = {field: (group, leaf) for group, leaves in GROUPS.items() for leaf, field in leaves.items()}
