"""`TaskTrigger`: base of the triggers that a task of this package waits with."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

#: Airflow 3 queues a task again as soon as its trigger has fired, and fails a try that is queued before the
#: executor's report of the deferral has reached the scheduler ("finished with state success, but the task
#: instance's state attribute is queued"): reports of a busy scheduler take seconds.
EARLIEST_EVENT_SECONDS = 10.0


class TaskTrigger(BaseTrigger):
    """Fires once, and not in a deferral's first ten seconds, whatever it waits for, nor does it fail in them.
    What ends the task from outside ends it at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @abstractmethod
    async def wait(self) -> dict[str, Any]:
        """Returns the event, as JSON, once it is there."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        began = time.monotonic()
        try:
            event = await self.wait()
        except Exception:
            await self._be_old_enough(began)
            raise
        await self._be_old_enough(began)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _be_old_enough(self, began: float) -> None:
        if self.trigger_id is not None:  # None where `dag.test()` runs it, in the task's own process
            await asyncio.sleep(max(began + EARLIEST_EVENT_SECONDS - time.monotonic(), 0))
