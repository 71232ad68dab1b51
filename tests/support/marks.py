"""Marks of parameters."""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: object) -> Any:
    """A parameter set that only `make long` runs."""
    return pytest.param(*values, marks=pytest.mark.long)
