"""`SubmissionTurnTrigger`: holds a task's submission in the triggerer, until few jobs wait on its cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.queue.line import wait_in_line
from airflow_provider_raydatallm.task.queue.places import QUEUE_ERRORS, QueuePlace, error_event
from airflow_provider_raydatallm.triggers.task_trigger import TaskTrigger


class SubmissionTurnTrigger(TaskTrigger):
    """Fires once, when it is the task's turn to submit its job (`task.queue.places.Turn`), or with the error
    that ended the waiting (`task.queue.places.error_event`).

    Whatever becomes of the task or the triggerer, there is nothing to stop: no job was submitted.

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
