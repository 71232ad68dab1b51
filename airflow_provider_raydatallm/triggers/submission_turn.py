"""`SubmissionTurnTrigger`: holds a task's submission in the triggerer, until few jobs wait on its cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_raydatallm.task.queue.line import wait_in_line
from airflow_provider_raydatallm.task.queue.places import QUEUE_ERRORS, QueuePlace, to_event
from airflow_provider_raydatallm.triggers.ray_job import refuse_another_machine
from airflow_provider_raydatallm.triggers.task_trigger import TaskTrigger


class SubmissionTurnTrigger(TaskTrigger):
    """Fires once, when it is the task's turn to submit its job, or it waited for too long. The event holds
    the place, and the error if there is one (`task.queue.places.to_event`).

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
        error: BaseException | None = None
        try:
            if place is not None:
                await asyncio.to_thread(refuse_another_machine, place.ray_conn_id, place.local_head)
                await wait_in_line(place, self.log)
        except QUEUE_ERRORS as e:
            error = e
        return {"place": self.place, **to_event(error)}
