"""When a slice will be finished, and whether that is in time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_raydatallm.processor.sizing import workers_needed

#: Seconds of answering after which a rate says something.
_SETTLED = 30.0


@dataclass(frozen=True)
class Late:
    """By how many seconds, and how many workers would be in time from now on; None when none would."""

    finish_by: float
    seconds: float
    workers: int | None

    def __str__(self) -> str:
        by = datetime.fromtimestamp(self.finish_by, UTC)
        more = f": {self.workers} workers would make it" if self.workers else ""
        return f"{self.seconds:,.0f} s later than finish_by ({by:%Y-%m-%d %H:%M} UTC){more}"


def late(
    finish_by: float, now: float, *, rows_left: int, rows_per_s: float | None, seconds: float, workers: int
) -> Late | None:
    """Whether the rows left will be answered too late.

    :param finish_by: and `now`: epoch seconds.
    :param rows_per_s: by all workers.
    :param seconds: for which rows have been answered; at the start rates are no good.
    """
    if not rows_per_s or (seconds < _SETTLED and now < finish_by):
        return None
    behind = now + rows_left / rows_per_s - finish_by
    if behind <= 0:
        return None
    left = finish_by - now
    needed = workers_needed(rows_left, workers / rows_per_s, left) if left > 0 else None
    return Late(finish_by, behind, needed)
