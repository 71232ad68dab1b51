"""Whether a slice will be finished when it should be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.processor.sizing.sizes import workers_needed

#: Seconds of answering after which a rate says something.
_SETTLED = 30.0


def lateness(finish_by: float, now: float, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Figures to go with a run's progress: `late_s`, how much later than it should be the slice will be
    finished (negative: earlier), and `workers_needed`, how many would be in time from now on. None is not
    known; no number of workers makes up for a time that is over.

    :param finish_by: and `now`: epoch seconds.
    :param progress: as `Meter.progress` has it.
    """
    left, began = progress["eta_s"], progress["first_row_s"]
    settled = began is not None and progress["elapsed_s"] - began >= _SETTLED
    if left is None or not (settled or now > finish_by):
        return {"late_s": None, "workers_needed": None}
    time_left, workers = finish_by - now, progress["workers"]
    needed = None
    if workers is not None and time_left > 0:
        # A row takes a worker so long; the rate is that of all of them.
        rows = progress["planned"] - progress["rows"]
        needed = max(1, workers_needed(rows, left / max(rows, 1) * workers, time_left))
    return {"late_s": round(now + left - finish_by), "workers_needed": needed}
