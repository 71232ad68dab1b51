"""The beat by which a job knows that a task waits for it."""

from __future__ import annotations

_MOST_SECONDS = 30.0


def heartbeat_seconds(orphan_timeout: float) -> float:
    """Returns the seconds between two beats of a task whose job ends after so many without one."""
    return min(orphan_timeout / 12, _MOST_SECONDS)
