"""Whether a slice will finish in time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.processor.sizing.sizes import workers_needed


def lateness(finish_by: float, now: float, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `late_s`, the seconds after `finish_by` at which the slice will finish (negative: earlier), and
    `workers_needed`, the workers that would finish in time from now on; None for unknown values, and for
    workers once `finish_by` has passed: then `late_s` is known, if only how late it is already.

    :param finish_by: and `now`: epoch seconds.
    :param progress: of `Meter.progress`.
    """
    eta_s = progress["eta_s"]
    if now >= finish_by:
        return {"late_s": round(now + (eta_s or 0) - finish_by), "workers_needed": None}
    if eta_s is None:
        return {"late_s": None, "workers_needed": None}
    time_left_s, workers = finish_by - now, progress["workers"]
    needed = None
    if workers is not None:
        rows = progress["planned"] - progress["rows"]
        worker_seconds_per_row = eta_s / max(rows, 1) * workers
        needed = max(1, workers_needed(rows, worker_seconds_per_row, time_left_s))
    return {"late_s": round(now + eta_s - finish_by), "workers_needed": needed}
