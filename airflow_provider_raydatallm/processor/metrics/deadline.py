"""Whether a slice will finish in time, and how many workers would make it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.processor.sizing.facts import PastThroughput
from airflow_provider_raydatallm.processor.sizing.sizes import workers_needed

#: Share of a measured rate that lasts: long answers gather in the engines, and take the place of others.
_LASTING = 0.85


def lateness(
    finish_by: float,
    now: float,
    progress: Mapping[str, Any],
    past: PastThroughput | None = None,
    most_workers: int = 1,
) -> dict[str, Any]:
    """Returns `late_s`, the seconds after `finish_by` at which the slice will finish (negative: earlier), and
    `workers_needed`, the workers that would finish in time, those that answer now included. None for unknown
    values, and for workers where no number of them would: then `late_s` is known, if only how late it is
    already.

    :param finish_by: and `now`: epoch seconds.
    :param progress: of `Meter.progress`, with its step.
    :param past: foretells a slice that has not begun to answer, by as many workers as it may have.
    """
    left_s, rows, eta_s = finish_by - now, progress["planned"] - progress["rows"], progress["eta_s"]
    workers, needed = progress["workers"], None
    if eta_s is None and past is not None and progress["step"] == "start":
        eta_s = past.engine_start + rows / (past.rows_per_s * most_workers)
        needed = workers_in_time(rows, past.rows_per_s, 0, left_s, past.engine_start)
    elif eta_s is not None and workers:
        # Not the run's rate over its workers: those that came lately have hardly added to it.
        rows_per_s = progress["worker_rows_per_s"] or (rows / (eta_s * workers) if eta_s else math.inf)
        # The last rows may be as long as the longest: by then all must be in an engine.
        to_begin_s = left_s - min(progress["longest_row_s"], left_s / 2)
        start_s = progress["engine_start_s"] or 0.0
        needed = workers_in_time(rows, _LASTING * rows_per_s, workers, to_begin_s, start_s)
    if eta_s is None and left_s > 0:
        return {"late_s": None, "workers_needed": None}
    return {"late_s": round((eta_s or 0) - left_s), "workers_needed": needed if left_s > 0 else None}


def workers_in_time(rows: int, rows_per_s: float, workers: int, left_s: float, start_s: float) -> int | None:
    """Returns how many workers answer the rows in time; None where further ones would come too late.

    :param rows_per_s: of one worker.
    :param workers: that answer now.
    :param start_s: seconds until a further worker answers.
    """
    excess = rows - workers * rows_per_s * left_s
    if rows == 0 or excess <= 0:
        return max(workers, 1)
    return workers + workers_needed(excess, 1 / rows_per_s, left_s - start_s) if left_s > start_s else None


def workers_wanted(late: Mapping[str, Any]) -> int | None:
    """Returns how many workers to have; None: as many as it may.

    :param late: of `lateness`.
    """
    if late["late_s"] is None:
        return 1  # until more is known
    needed: int | None = late["workers_needed"]
    return needed
