"""The line of tasks whose submissions a triggerer holds: one per cluster, in the order in which they came.

All of them share one look at the cluster's jobs. A task that is called submits its job some seconds later,
on a worker, which checks again (`gate`): until then its place is kept.

Airflow starts no task of a DAG that is paused, and tells no trigger of it. So the tasks of a DAG stand aside
when one that was called does not come: they keep no places and their time does not run, but one after another
is tried, until the DAG has a new job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from weakref import WeakKeyDictionary

from airflow_provider_raydatallm.clusters.base import ClusterEndedError, ClusterStartingError
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.waiter import TaskLog
from airflow_provider_raydatallm.task.queue.places import (
    QueueLog,
    QueuePlace,
    Turn,
    count_waiting,
    dag_of,
    jobs_text,
    max_waiting_jobs,
    seconds_between_looks,
    task_key,
)

#: Seconds for which a place is kept for a task that was called. Its trigger may be too young to fire for ten
#: of them.
_KEPT_SECONDS = 40.0
#: Between two looks at a cluster that starts, which tells its process by itself when it has.
_START_SECONDS = 1.0


class Line:
    """Who is called next. Pure: tasks are keys, and times are seconds of any one clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._called_at: dict[str, float] = {}
        self._submitted: frozenset[str] = frozenset()
        #: DAGs that stand aside.
        self._absent: set[str] = set()

    def join(self, task: str, since: float) -> None:
        self._since[task] = since
        self._absent.discard(dag_of(task))
        self._called_at.pop(task, None)  # it found its place taken

    def leave(self, task: str) -> None:
        self._since.pop(task, None)

    def is_called(self, task: str) -> bool:
        return task not in self._since

    def stands_aside(self, task: str) -> bool:
        return dag_of(task) in self._absent

    def ahead(self, task: str) -> int:
        """Returns how many tasks are called before this one."""
        mine = (self._since[task], task)
        return sum((since, other) < mine for other, since in self._present())

    def behind(self, task: str) -> int:
        """Returns how many tasks stand in line beside this one, which was called."""
        return sum(other != task for other, _ in self._present())

    @property
    def places_kept(self) -> int:
        return sum(not self.stands_aside(task) for task in self._called_at)

    def _present(self) -> list[tuple[str, float]]:
        return [(task, since) for task, since in self._since.items() if not self.stands_aside(task)]

    def call(self, places: int, waiting: int, submitted: Collection[str], now: float) -> None:
        """Calls as many tasks as there are free places.

        :param waiting: jobs that wait for room on the cluster.
        :param submitted: tasks that have a job there.
        """
        self._absent -= {dag_of(task) for task in set(submitted) - self._submitted}
        self._submitted = frozenset(submitted)
        late = {task for task, at in self._called_at.items() if now - at >= _KEPT_SECONDS}
        self._absent |= {dag_of(task) for task in late - self._submitted}
        for task in late | self._submitted:
            self._called_at.pop(task, None)
        free = places - waiting - self.places_kept
        tried = {dag_of(task) for task in self._called_at}
        for task in sorted(self._since, key=lambda task: (self._since[task], task)):
            if free <= 0:
                return
            if self.stands_aside(task):
                if dag_of(task) in tried:
                    continue
                tried.add(dag_of(task))
            else:
                free -= 1
            del self._since[task]
            self._called_at[task] = now


class _SharedLine:
    """A line, and its looks at the cluster: those who wait for the next look share it."""

    def __init__(self, cluster: str) -> None:
        self.line = Line()
        #: Jobs that wait for room on the cluster, at the last look; None before the first.
        self.waiting: int | None = None
        self._hook = RayHook.to_cluster(cluster)
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
        seconds, is_starting = 0.0, False
        try:
            jobs = await self._hook.acall(jobs_api.list_live_jobs())
            seconds = jobs.seconds
        except (RayLLMJobError, RayConnectionError) as e:
            self._hook.reread()
            is_starting = isinstance(e, ClusterStartingError)
            raise
        finally:
            pause_s = _START_SECONDS if is_starting else seconds_between_looks(seconds)
            self._next_look = time.monotonic() + pause_s
        self.waiting = waiting = count_waiting(jobs)
        submitted = {task_key(metadata) for metadata in jobs.metadata}
        self.line.call(max_waiting_jobs(), waiting, submitted, time.monotonic())


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _SharedLine]]
_lines = WeakKeyDictionary()


async def wait_in_line(place: QueuePlace, log: TaskLog) -> Turn:
    """Returns when it is the task's turn to submit its job.

    :raises RayQueueTimeoutError, AirflowTaskTimeout: when it took too long.
    :raises RayLLMJobError, RayConnectionError: when the cluster was away, or refused us, for too long.
    """
    of_loop = _lines.setdefault(asyncio.get_running_loop(), {})
    if (shared := of_loop.get(place.cluster)) is None:
        shared = of_loop[place.cluster] = _SharedLine(place.cluster)
    line, queue_log, last_contact = shared.line, QueueLog(log), time.monotonic()
    line.join(place.task, place.since)
    try:
        while True:
            began, stood_aside = time.time(), line.stands_aside(place.task)
            try:
                await shared.look(place.seconds_left(queue_log.waits_for))
                last_contact = time.monotonic()
            except ClusterEndedError:  # its worker has another one made
                return Turn(place)
            except ClusterStartingError as e:
                last_contact = time.monotonic()
                queue_log.waiting(e.failure.headline)
                continue
            except (RayLLMJobError, RayConnectionError) as e:
                place.seconds_left(queue_log.waits_for)
                if time.monotonic() - last_contact > place.reconnect_timeout:
                    raise
                queue_log.unreachable(e)
                continue
            if line.is_called(place.task):
                return Turn(place, line.behind(place.task))
            if stood_aside:
                place = replace(place, since=place.since + time.time() - began)
            if shared.waiting is not None:
                queue_log.waiting(waits_for(place.task, line, shared.waiting))
    finally:
        line.leave(place.task)


def waits_for(task: str, line: Line, waiting: int) -> str:
    """Returns for people what a task waits for that was not called, while so many jobs wait."""
    if line.stands_aside(task):
        dag = dag_of(task)
        return f"Airflow has started no task of DAG {dag!r} that was called: is it paused, or its pool full?"
    text = jobs_text(waiting)
    if kept := line.places_kept:
        text += f"; tasks that were called and have not submitted yet: {kept}"
    return f"{text}; tasks before this one: {line.ahead(task)}"
