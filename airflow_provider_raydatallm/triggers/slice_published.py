"""`SlicePublishedTrigger`: waits in the triggerer until a slice is published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_raydatallm.task.wanted_slice import WantedSlice


class SlicePublishedTrigger(BaseTrigger):
    """Fires once, with the report as the event; or with `{"error": ...}` where waiting is in vain.

    :param wanted: a `WantedSlice` as a dict.
    :param poke_interval: seconds between two looks.
    """

    def __init__(self, wanted: dict[str, Any], poke_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wanted, self.poke_interval = WantedSlice(**wanted), poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"wanted": asdict(self.wanted), "poke_interval": self.poke_interval}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        event: dict[str, Any] | None = None
        while event is None:
            await asyncio.sleep(self.poke_interval)
            try:
                event = await asyncio.to_thread(self.wanted.look, self.log)
            except Exception as e:
                event = {"error": f"{type(e).__name__}: {e}"}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]
