"""How a feeder calls a `DedupCoordinator`: as an actor, or in its own process if it is the only feeder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_raydatallm.processor.engines.dedup.coordinator import DedupCoordinator

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class Coordinator(Protocol):
    def call(self, method: str, *args: Any) -> Callable[[], Any]:
        """Begins a call. Returns what waits for its result."""


class ActorCoordinator:
    def __init__(self, actor: ActorHandle[Any]) -> None:
        self._actor = actor

    def call(self, method: str, *args: Any) -> Callable[[], Any]:
        import ray

        ref = getattr(self._actor, method).remote(*args)
        return lambda: ray.get(ref)


class LocalCoordinator:
    def __init__(self) -> None:
        self._coordinator = DedupCoordinator()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="ray-llm-dedup", daemon=True).start()

    def call(self, method: str, *args: Any) -> Callable[[], Any]:
        return asyncio.run_coroutine_threadsafe(getattr(self._coordinator, method)(*args), self._loop).result
