"""`QuestionTrigger`: withdraws an earlier try's question, or reads its answer."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from airflow_provider_raydatallm.task import hold
from airflow_provider_raydatallm.triggers.task_trigger import TaskTrigger


class QuestionTrigger(TaskTrigger):
    """Fires once, with the answer as Airflow has it, or with nothing once nobody can give one any more.

    Of a task that was cleared, or whose process died, Airflow takes an answer and tells nobody: a task's
    process may put a question and never read it. So the new try withdraws it before it does anything.

    :param ti_id: of the task instance.
    """

    def __init__(self, ti_id: str) -> None:
        super().__init__()
        self.ti_id = ti_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"ti_id": self.ti_id}

    async def wait(self) -> dict[str, Any]:
        return await asyncio.to_thread(hold.withdraw, UUID(self.ti_id))
