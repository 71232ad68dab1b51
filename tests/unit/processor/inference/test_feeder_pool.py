from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

from airflow_provider_raydatallm.processor.inference.feeder_pool import FeederPool, _Feeder
from tests.support.slice_jobs import slice_job


class Pool(FeederPool):
    """With one feeder, which holds a block; its calls raise `error`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception = ActorDiedError()
        self.killed: list[Any] = []
        monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs, []))
        monkeypatch.setattr(ray, "get", self._raise)
        monkeypatch.setattr(ray, "kill", self.killed.append)
        unused: Any = None
        super().__init__(slice_job(), unused, unused, (1, 1))
        self.add(is_ready=True)

    def _raise(self, refs: Any) -> None:
        raise self.error

    def add(self, *, is_ready: bool) -> None:
        calls: Any = ["call"]
        actor: Any = SimpleNamespace()
        self._feeders = [_Feeder(actor, calls[0], is_ready=is_ready, calls=calls)]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    return Pool(monkeypatch)


@pytest.mark.parametrize("error", [ActorDiedError(), OutOfMemoryError("1 worker(s) were killed")])
def test_a_feeder_that_ray_ended_is_buried_also_where_its_node_was_short_of_memory(
    pool: Pool, error: Exception
) -> None:
    [feeder], pool.error = pool._feeders, error
    pool._check()
    assert (pool.death, pool._feeders, pool.killed) == (error, [], [feeder.actor])


@pytest.mark.parametrize("error", [ActorDiedError(), OutOfMemoryError("1 worker(s) were killed")])
def test_a_feeder_that_raises_that_its_writer_died_is_not_buried(pool: Pool, error: Exception) -> None:
    [feeder] = pool._feeders
    pool.error = RayTaskError("FeederProcess.take", "Traceback", error).as_instanceof_cause()
    with pytest.raises(RayTaskError):
        pool._check()
    assert (pool.death, pool._feeders, pool.killed) == (None, [feeder], [])
