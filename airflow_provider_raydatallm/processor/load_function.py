"""Functions of users, by their references."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError, loading


def load_function(reference: str | None) -> Callable[[Any], Any] | None:
    """:raises SliceError: when it cannot be imported, or is no function."""
    if reference is None:
        return None
    module, _, name = reference.partition(":")
    with loading(repr(reference), module):
        value = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    if not callable(value):
        raise SliceError(f"{reference!r} is not a function", kind="input")
    return value
