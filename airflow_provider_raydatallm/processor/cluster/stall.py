"""Noticing that nothing moves any more. A dead actor in a fixed pool, CPUs that are all taken, a GPU that
does not come back: Ray waits for ever in each of them, without a word."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from airflow_provider_raydatallm.contract.errors import SliceError

_LIMIT = 10_000
_NAMES = 12


class StallWatch:
    """Raises when no row finished for too long; the time in which an engine loads its model is not
    counted."""

    def __init__(
        self,
        rows: int,
        timeout: float,
        loads: Callable[[], bool],
        waits: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param loads: whether an engine that is not there yet is on its way, asked when nothing moves.
        :param waits: what waits for what, asked before this raises."""
        self._left = rows
        self._timeout = timeout
        self._loads = loads
        self._waits = waits
        self._clock = clock
        self._since = clock()
        self._started = False

    def look(self, finished: int, started: bool) -> None:
        """
        :param finished: rows since the last look, by whatever answered them.
        :param started: whether an engine is there: it said so, or has answered.
        :raises SliceError: of kind `engine`, which is worth a retry."""
        self._left -= finished
        if finished or (started and not self._started):
            self._since = self._clock()
        self._started = self._started or started
        if self._left <= 0 or self._clock() - self._since < self._timeout:
            return
        if not self._started and self._loads():
            self._since = self._clock()
            return
        raise stalled(f"no row finished for {self._timeout:g} s", f"{self._left:,} rows wait", self._waits())


def stalled(seen: str, left: str, waits: str) -> SliceError:
    return SliceError(
        f"{seen} (stall_timeout) while {left}{f'. {waits}' if waits else ''}. Finished rows are kept, and a "
        "retry goes on with the others. Work that takes longer than that needs a higher stall_timeout",
        kind="engine",
    )


def an_engine_loads() -> bool:
    """Whether an actor of this job has what it asked for, and is not ready for the first time; also when that
    cannot be told."""
    import ray
    from ray.util.state import list_actors

    try:
        job = ray.get_runtime_context().get_job_id()
        actors = list_actors(
            detail=True, filters=[("job_id", "=", job)], limit=_LIMIT, raise_on_missing_output=False
        )
    except Exception:  # no dashboard to ask
        return True
    return any(a.state == "PENDING_CREATION" and a.pid for a in actors)


def what_waits() -> str:
    """What this job's tasks and actors are doing, and how many CPUs are left, as Ray's state API has it;
    empty when it does not say."""
    import ray
    from ray.util.state import list_actors, list_tasks

    try:
        job = ray.get_runtime_context().get_job_id()
        mine = [("job_id", "=", job)]
        tasks = list_tasks(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
        actors = list_actors(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
        free, there = (of().get("CPU", 0) for of in (ray.available_resources, ray.cluster_resources))
    except Exception:  # what is told without it matters more
        return ""
    doing = Counter(f"{t.name} {t.state}" for t in tasks if t.state not in ("FINISHED", "FAILED"))
    doing += Counter(f"{a.class_name} (actor) {a.state}" for a in actors if a.state != "DEAD")
    said = ", ".join(f"{count} x {name}" for name, count in doing.most_common(_NAMES))
    return f"Of this job, {said}; {free:g} of the cluster's {there:g} CPUs are free" if said else ""
