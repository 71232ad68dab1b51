"""`SlicePublishedTrigger`: waits in the triggerer until a slice is published."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_raydatallm.exceptions import failure_of
from airflow_provider_raydatallm.task.wanted_slice import WantedSlice
from airflow_provider_raydatallm.triggers.task_trigger import TaskTrigger


class SlicePublishedTrigger(TaskTrigger):
    """Fires once, with the report as the event; or with `{"failure": ...}` where waiting is in vain.

    :param wanted: a `WantedSlice` as a dict.
    :param poke_interval: seconds between two looks.
    """

    def __init__(self, wanted: dict[str, Any], poke_interval: float) -> None:
        super().__init__()
        self.wanted, self.poke_interval = wanted, poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"wanted": self.wanted, "poke_interval": self.poke_interval}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def wait(self) -> dict[str, Any]:
        wanted = WantedSlice(**self.wanted)
        event: dict[str, Any] | None = None
        while event is None:
            await asyncio.sleep(self.poke_interval)
            try:
                event = await asyncio.to_thread(wanted.look, self.log)
            except Exception as e:
                event = {"failure": failure_of(e).to_json()}
        return event
