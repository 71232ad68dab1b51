"""`RayJobTrigger`: waits for a slice's Ray job in the triggerer, while its task takes no worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_raydatallm.ownership import TaskAttempt, stop_own_job
from airflow_provider_raydatallm.polling import TimedOut, to_event
from airflow_provider_raydatallm.waiting import JobRef, wait_for_job

#: Airflow gives `on_kill` 30 seconds.
_STOP_SECONDS = 25.0


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
        await self._stop(deferred=True)

    async def _stop(self, *, deferred: bool) -> None:
        if self.cancel_on_kill and self.task_instance is not None:
            attempt = TaskAttempt.of(self.task_instance)
            await asyncio.wait_for(
                stop_own_job(JobRef(**self.job), attempt, self.log, deferred=deferred), _STOP_SECONDS
            )
