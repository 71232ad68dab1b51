"""The package's own code in one process: what needs Ray, a GPU or an endpoint is replaced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.dedup import client
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import DedupCoordinator
from airflow_provider_raydatallm.processor.engines.feeding.feeder import FeederSetup
from airflow_provider_raydatallm.processor.engines.http import engine as http_engine
from airflow_provider_raydatallm.processor.engines.http.engine import HttpEngine
from airflow_provider_raydatallm.processor.engines.shared.engine import SharedVllmEngine
from airflow_provider_raydatallm.processor.engines.vllm import engine_base
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine

#: Numbers of a vector, where nobody says how many.
VECTOR_SIZE = 4


@contextlib.contextmanager
def bench() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Ids of units cover what they say by themselves only: what else decides how a row reads shows.
        patch.setattr(SliceJob, "row_rule", property(lambda job: {}))
        patch.setattr(engine_base, "vllm_is_cpu_build", lambda accelerator: False)
        for engine in (VllmEngine, SharedVllmEngine):
            patch.setattr(engine, "_start", lambda engine: None)
        patch.setattr(http_engine, "ask_vector_size", _vector_size)
        patch.setattr(client, "ActorCoordinator", lambda actor: actor)
        patch.setattr(client, "LocalCoordinator", lambda: _InThisThread(DedupCoordinator()))
        patch.setattr(client, "_repeat", lambda work, seconds: None)
        yield


def feeder_setup(engine: VllmEngine | HttpEngine) -> FeederSetup:
    """What a feeder gets of the engine, which does not start."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "remote", lambda actor: _Actor)
        return engine._start_feeding(True)(deliver=lambda answers: answers)


async def _vector_size(job: SliceJob) -> int:
    return VECTOR_SIZE


class _InThisThread:
    """A coordinator for one feeder, which never waits for another."""

    def __init__(self, coordinator: DedupCoordinator) -> None:
        self._coordinator = coordinator
        self._loop = asyncio.new_event_loop()

    def call(self, method: str, *args: Any) -> Callable[[], Any]:
        result = self._loop.run_until_complete(getattr(self._coordinator, method)(*args))
        return lambda: result


#: In place of a Ray actor.
_Actor = SimpleNamespace(
    options=lambda **options: SimpleNamespace(
        remote=lambda *args: _InThisThread(DedupCoordinator(*args)),
    )
)
