"""Marks of parameters."""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: str) -> Any:
    """The other mode, where one is enough for every day."""
    return pytest.param(*values, marks=pytest.mark.long)
