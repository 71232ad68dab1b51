from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import ActorID
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.inference.feeder_pool import (
    _MOST_FAILED_STARTS,
    FeederPool,
    _Feeder,
)
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
        self._feeders = [_Feeder(actor, calls[0], "node" if is_ready else None, calls=calls)]


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


def test_feeders_that_die_again_and_again_while_they_start_end_the_run_with_advice(pool: Pool) -> None:
    pool.error = OutOfMemoryError("Task was killed due to the node running low on memory.")
    for _ in range(_MOST_FAILED_STARTS - 1):
        pool.add(is_ready=False)
        pool._check()
    pool.add(is_ready=False)
    with pytest.raises(SliceError, match="4 feeders in a row died while they started: OutOfMemoryError") as e:
        pool._check()
    assert e.value.kind == "engine"
    assert e.value.failure.advice[0].startswith("The node ran out of memory")


def test_deaths_after_the_start_are_no_failed_starts(pool: Pool) -> None:
    for _ in range(2 * _MOST_FAILED_STARTS):
        pool.add(is_ready=True)
        pool._check()
    assert pool._feeders == []


def test_feeder_whose_constructor_raises_ends_the_run_with_that(pool: Pool) -> None:
    raised = RayTaskError(
        "FeederProcess.__init__", "no tokenizer", ValueError(), actor_id=ActorID.nil().hex()
    )
    pool.error = ActorDiedError(raised)
    pool.add(is_ready=False)
    with pytest.raises(ActorDiedError, match="no tokenizer"):
        pool._check()
