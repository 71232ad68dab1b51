"""Labels that a job lists."""

from __future__ import annotations

#: The documentation of the argument.
CHOICES = "the answer is one of these texts, the most probable one by default."


def check_choices(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """:raises ValueError: for those that cannot be told apart."""
    if value is not None and (len(set(value)) != len(value) or len(value) < 2 or "" in value):
        raise ValueError(f"choices must be at least two different, non-empty texts, got {list(value)!r}")
    if bad := [choice for choice in value or () if "\0" in choice]:
        raise ValueError(f"choices must not hold NUL, which databases take in no text, got {bad[0]!r}")
    return value
