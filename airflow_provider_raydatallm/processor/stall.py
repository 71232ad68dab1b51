"""Noticing that nothing moves any more. A dead actor in a fixed pool, CPUs that are all taken, a GPU that
does not come back: Ray waits for ever in each of them, without a word."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from airflow_provider_raydatallm.processor.errors import SliceError

_LIMIT = 10_000
_NAMES = 12


class StallWatch:
    """Raises when no row finished for too long, counted from when the engine was there."""

    def __init__(
        self, rows: int, timeout: float, waits: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """:param waits: what waits for what, asked when nothing moves."""
        self._left = rows
        self._timeout = timeout
        self._waits = waits
        self._clock = clock
        self._since: float | None = None

    def look(self, finished: int, started: bool) -> None:
        """:param finished: rows since the last look. :param started: whether an engine is there.
        :raises SliceError: of kind `engine`, which is worth a retry."""
        self._left -= finished
        if finished or (started and self._since is None):
            self._since = self._clock()
        if self._since is None or self._left <= 0 or self._clock() - self._since < self._timeout:
            return
        waits = self._waits()
        raise SliceError(
            f"no row finished for {self._timeout:g} s (stall_timeout) while {self._left:,} rows wait"
            f"{f'. Of this job, {waits}' if waits else ''}. Finished rows are kept, and a retry goes on with "
            "the others. Rows that take longer than that need a higher stall_timeout",
            kind="engine",
        )


def what_waits() -> str:
    """What this job's tasks and actors are doing, as Ray's state API has it; empty when it does not say."""
    import ray
    from ray.util.state import list_actors, list_tasks

    try:
        job = ray.get_runtime_context().get_job_id()
        mine = [("job_id", "=", job)]
        tasks = list_tasks(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
        actors = list_actors(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
    except Exception:  # what is told without it matters more
        return ""
    doing = Counter(f"{t.name} {t.state}" for t in tasks if t.state not in ("FINISHED", "FAILED"))
    doing += Counter(f"{a.class_name} (actor) {a.state}" for a in actors if a.state != "DEAD")
    return ", ".join(f"{count} x {name}" for name, count in doing.most_common(_NAMES))
