"""Durations as people write them: `"30m"`, `"1h30m"`, a number of seconds, or a timedelta. Pure."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])\s*")


def to_seconds(value: Any) -> float:
    """:raises ValueError: when it is no duration."""
    seconds = _to_number(value)
    if seconds is not None and math.isfinite(seconds):
        return seconds
    raise ValueError(
        f"{value!r} is not a duration: give text such as '30m' or '1h30m', seconds, or a timedelta"
    )


def _to_number(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        text = value.strip().lower()
        try:
            return float(text)
        except ValueError:
            if re.fullmatch(f"(?:{_TEXT.pattern})+", text):
                return sum(float(amount) * _UNITS[unit] for amount, unit in _TEXT.findall(text))
    return None


def to_optional_seconds(value: Any) -> float | None:
    """Returns None for None and for "never"."""
    is_never = value is None or (isinstance(value, str) and value.strip().lower() in ("never", "none"))
    return None if is_never else to_seconds(value)
