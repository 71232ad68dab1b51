"""`SubmissionTurnTrigger`: holds a task's submission in the triggerer, until few jobs wait on its cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_raydatallm.clusters.base import Holder
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.airflow_features import HAS_TRIGGER_ON_KILL
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt, find_ended, has_ended
from airflow_provider_raydatallm.task.queue.line import wait_in_line
from airflow_provider_raydatallm.task.queue.places import QUEUE_ERRORS, QueuePlace, error_event
from airflow_provider_raydatallm.triggers.task_trigger import TaskTrigger

#: Releases under way: an event loop keeps only weak references to its tasks.
_releasing: set[asyncio.Task[None]] = set()


class SubmissionTurnTrigger(TaskTrigger):
    """Fires once, when it is the task's turn to submit its job (`task.queue.places.Turn`), or with the error
    that ended the waiting (`task.queue.places.error_event`).

    Whatever becomes of the task or the triggerer, there is no job to stop: none was submitted. A cluster that
    is made for a task that a person marks meanwhile is released; the next try of a cleared one needs it.

    :param place: a `QueuePlace` as a dict.
    """

    def __init__(self, place: dict[str, Any]) -> None:
        super().__init__()
        self.place = place

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"place": self.place}

    async def wait(self) -> dict[str, Any]:
        place = QueuePlace.from_kwargs(self.place)
        if place is None:  # of another version of the provider: its task comes anew
            return {}
        try:
            await asyncio.to_thread(RayHook.to_cluster(place.cluster).check_machine)
            return (await wait_in_line(place, self.log)).to_event()
        except QUEUE_ERRORS as e:
            return error_event(e, place)
        except asyncio.CancelledError:
            if not HAS_TRIGGER_ON_KILL and self.task_instance is not None:
                await self.on_kill()
            raise

    async def on_kill(self) -> None:
        # Airflow cancels this call once a second until it returns.
        releasing = asyncio.create_task(asyncio.to_thread(self._release))
        _releasing.add(releasing)
        releasing.add_done_callback(_releasing.discard)
        await asyncio.shield(releasing)

    def _release(self) -> None:
        place, attempt = (
            QueuePlace.from_kwargs(self.place),
            TaskAttempt.from_task_instance(self.task_instance),
        )
        if place is None or not place.cluster:
            return
        hook = RayHook.to_cluster(place.cluster, Holder(place.task, attempt.try_number))
        try:
            if hook.ends_when_released and has_ended(attempt):
                hook.release(find_ended)
        except (
            AirflowRuntimeError,
            RayConnectionError,
            RayConnectionNotFoundError,
            RayUnreachableError,
        ) as e:
            self.log.warning("Cannot release %s: %s", place.cluster, e)
