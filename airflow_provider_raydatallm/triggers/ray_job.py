"""`RayJobTrigger`: waits for a slice's Ray job in the triggerer, while its task takes no worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_raydatallm.task.job_cancel import TaskAttempt, stop_own_job
from airflow_provider_raydatallm.task.job_verdict import TimedOut, to_event
from airflow_provider_raydatallm.task.job_waiter import JobRef, wait_for_job

#: The first question that a triggerer asks Airflow can take long: it loads the API for it.
_STOP_SECONDS = 60.0
#: Stops under way: an event loop keeps no task that nobody else keeps.
_stopping: set[asyncio.Task[None]] = set()


class RayJobTrigger(BaseTrigger):
    """Fires once, with the verdict on the job (`polling.to_event`).

    When somebody clears the task, marks it, or deletes its run, the job is asked to stop. When a triggerer
    dies or its triggers go to another one, the job runs on and is found again.

    :param job: the job and how it is waited for, as a dict of `JobRef`: ids and numbers.
    :param cancel_on_kill: whether to stop the job when the task is killed or its time is over.
    """

    def __init__(self, job: dict[str, Any], cancel_on_kill: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"job": self.job, "cancel_on_kill": self.cancel_on_kill}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        verdict = await wait_for_job(JobRef(**self.job), self.log)
        if isinstance(verdict, TimedOut):
            await self._stop(deferred=False)
        yield TriggerEvent(to_event(verdict))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        # A triggerer that was thought dead calls this too, when it learns that another one has its triggers.
        # Airflow cancels this once a second until it returns: what does the work must not be cancelled.
        stopping = asyncio.create_task(self._stop(deferred=True))
        _stopping.add(stopping)
        stopping.add_done_callback(_stopping.discard)
        await asyncio.shield(stopping)

    async def _stop(self, *, deferred: bool) -> None:
        if not self.cancel_on_kill:
            return
        job, attempt = JobRef(**self.job), TaskAttempt.of(self.task_instance)
        await stop_own_job(job, attempt, self.log, deferred=deferred, within=_STOP_SECONDS)
