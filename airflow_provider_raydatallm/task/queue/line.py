"""The line of tasks whose submissions a triggerer holds: one per cluster, in the order in which they came.

All of them share one look at the cluster's jobs. A task that is called submits its job a few seconds later,
on a worker, which checks again (`gate`): until then its place is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from weakref import WeakKeyDictionary

from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.waiter import TaskLog
from airflow_provider_raydatallm.task.queue.places import (
    QueueLog,
    QueuePlace,
    count_waiting,
    max_waiting_jobs,
    seconds_between_looks,
    task_key,
)

#: Seconds for which a place is kept for a task that was called.
_KEPT_SECONDS = 30.0


class Line:
    """Who is called next. Pure: tasks are keys, and times are seconds of any one clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._called_at: dict[str, float] = {}

    def join(self, task: str, since: float) -> None:
        self._since[task] = since
        self._called_at.pop(task, None)  # it found its place taken

    def leave(self, task: str) -> None:
        self._since.pop(task, None)

    def ahead(self, task: str) -> int | None:
        """Returns how many tasks are before this one; None when it was called."""
        if task not in self._since:
            return None
        mine = (self._since[task], task)
        return sum((since, other) < mine for other, since in self._since.items())

    def call(self, places: int, waiting: int, submitted: Collection[str], now: float) -> None:
        """Calls as many tasks as there are free places.

        :param waiting: jobs that wait for room on the cluster.
        :param submitted: tasks that have a job there.
        """
        self._called_at = {
            task: at
            for task, at in self._called_at.items()
            if task not in submitted and now - at < _KEPT_SECONDS
        }
        free = max(places - waiting - len(self._called_at), 0)
        for _, task in sorted((since, task) for task, since in self._since.items())[:free]:
            del self._since[task]
            self._called_at[task] = now


class _SharedLine:
    """A line, and its looks at the cluster: those who wait for the next look share it."""

    def __init__(self, ray_conn_id: str, local_head: str | None) -> None:
        self.line = Line()
        self.waiting = 0
        self._hook = RayHook(ray_conn_id, local_head=local_head)
        self._next_look = -float("inf")
        self._looking: asyncio.Task[None] | None = None

    async def look(self, timeout_s: float) -> None:
        """Returns after the next look, or when the time is up.

        :raises RayLLMJobError, RayConnectionError: when the cluster could not be asked.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        # Who leaves the line does not end the look of the others.
        done, _ = await asyncio.wait({self._looking}, timeout=timeout_s)
        for look in done:
            look.result()

    async def _look(self) -> None:
        await asyncio.sleep(self._next_look - time.monotonic())
        seconds = 0.0
        try:
            jobs = await self._hook.acall(jobs_api.list_live_jobs())
            seconds = jobs.seconds
        except (RayLLMJobError, RayConnectionError):
            self._hook.reread()
            raise
        finally:
            self._next_look = time.monotonic() + seconds_between_looks(seconds)
        self.waiting = count_waiting(jobs)
        submitted = {task_key(metadata) for metadata in jobs.metadata}
        self.line.call(max_waiting_jobs(), self.waiting, submitted, time.monotonic())


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], _SharedLine]]
_lines = WeakKeyDictionary()


async def wait_in_line(place: QueuePlace, log: TaskLog) -> None:
    """Returns when it is the task's turn to submit its job.

    :raises RayQueueTimeoutError, AirflowTaskTimeout: when it took too long.
    :raises RayLLMJobError, RayConnectionError: when the cluster was away, or refused us, for too long.
    """
    of_loop = _lines.setdefault(asyncio.get_running_loop(), {})
    cluster = place.ray_conn_id, place.local_head
    shared = of_loop.setdefault(cluster, _SharedLine(*cluster))
    line, queue_log, last_contact = shared.line, QueueLog(log), time.monotonic()
    line.join(place.task, place.since)
    try:
        while True:
            try:
                await shared.look(place.seconds_left())
                last_contact = time.monotonic()
            except (RayLLMJobError, RayConnectionError) as e:
                place.seconds_left()
                if time.monotonic() - last_contact > place.reconnect_timeout:
                    raise
                queue_log.unreachable(e)
                continue
            if (ahead := line.ahead(place.task)) is None:
                return
            queue_log.waiting(shared.waiting, ahead)
    finally:
        line.leave(place.task)
