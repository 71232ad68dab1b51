"""The beat by which a job knows that a task waits for it.

A job that publishes needs more: a beat of a waiter that has asked Airflow meanwhile whether its task still
waits. A waiter that hung may beat for a task that was marked, cleared or given up.
"""

from __future__ import annotations

#: How such a beat begins.
CONFIRMED = "confirmed-"
#: Between two beats while the job publishes.
PUBLISHING_SECONDS = 5.0
#: A beat is stale when so many in a row did not come.
MISSED_BEATS = 3
_MOST_SECONDS = 30.0


def heartbeat_seconds(orphan_timeout: float) -> float:
    """Returns the seconds between two beats of a task whose job ends after so many without one."""
    return min(orphan_timeout / 12, _MOST_SECONDS)
