"""`RayJobTrigger`: waits for a slice's Ray job in the triggerer, while its task uses no worker."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.airflow_features import HAS_TRIGGER_ON_KILL
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt, still_waits, stop_own_job
from airflow_provider_raydatallm.task.job.verdict import ClusterUnreachable, TimedOut, Verdict, to_event
from airflow_provider_raydatallm.task.job.waiter import JobRef, wait_for_job
from airflow_provider_raydatallm.triggers.task_trigger import TaskTrigger

#: A triggerer's first call to Airflow can be slow: it loads the API.
_STOP_SECONDS = 60.0
#: Stops under way: an event loop keeps only weak references to its tasks.
_stopping: set[asyncio.Task[None]] = set()


class RayJobTrigger(TaskTrigger):
    """Fires once, with the verdict on the job (`task.job.verdict.to_event`).

    Stops the job when a user clears or marks the task, or deletes its run. When a triggerer dies or hands its
    triggers to another one, the job runs on and the next triggerer waits for it.

    :param job: a `JobRef` as a dict.
    :param cancel_on_kill: stop the job when the task is killed or times out.
    """

    def __init__(self, job: dict[str, Any], cancel_on_kill: bool) -> None:
        super().__init__()
        self.job = job
        self.cancel_on_kill = cancel_on_kill

    @cached_property
    def _hook(self) -> RayHook:
        """Of the waiting and of the stop, which so needs no lookup."""
        return RayHook.to_cluster(JobRef.of(self.job).cluster)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"job": self.job, "cancel_on_kill": self.cancel_on_kill}

    async def wait(self) -> dict[str, Any]:
        job = JobRef.of(self.job)
        verdict: Verdict
        try:
            await asyncio.to_thread(self._hook.check_machine)
        except RayConnectionError as e:
            verdict = ClusterUnreachable(e.failure)
        else:
            try:
                verdict = await wait_for_job(job, self.log, self._still_waits, hook=self._hook)
            except asyncio.CancelledError:
                # Whoever ended it: a job whose task is still deferred is left alone.
                if not HAS_TRIGGER_ON_KILL and self.task_instance is not None:
                    await self.on_kill()
                raise
        if isinstance(verdict, TimedOut):
            await self._stop(deferred=False)
        return to_event(verdict)

    async def on_kill(self) -> None:
        # A triggerer that was thought dead calls this too, when it learns that another one has its triggers.
        # Airflow cancels this call once a second until it returns: shield the stop.
        stopping = asyncio.create_task(self._stop(deferred=True))
        _stopping.add(stopping)
        stopping.add_done_callback(_stopping.discard)
        await asyncio.shield(stopping)

    async def _still_waits(self) -> bool:
        if self.task_instance is None:
            return True  # `dag.test()` runs it in the task's own process
        return await still_waits(
            self.job["submission_id"], TaskAttempt.from_task_instance(self.task_instance)
        )

    async def _stop(self, *, deferred: bool) -> None:
        if not self.cancel_on_kill:
            return
        job, attempt = JobRef.of(self.job), TaskAttempt.from_task_instance(self.task_instance)
        await stop_own_job(job, attempt, self.log, self._hook, deferred=deferred, timeout_s=_STOP_SECONDS)
