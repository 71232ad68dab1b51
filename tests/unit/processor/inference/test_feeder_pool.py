from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError

from airflow_provider_raydatallm.processor.inference.feeder_pool import FeederPool, _Feeder
from tests.support.slice_jobs import slice_job


@pytest.mark.parametrize("error", [ActorDiedError(), OutOfMemoryError("1 worker(s) were killed")])
def test_a_feeder_that_ray_ended_is_buried_also_where_its_node_was_short_of_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def get(refs: Any) -> None:
        raise error

    killed: list[Any] = []
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs, []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", killed.append)
    actor: Any = SimpleNamespace()
    unused: Any = None
    pool = FeederPool(slice_job(), unused, unused, (1, 1))
    calls: Any = ["call"]
    pool._feeders = [_Feeder(actor, calls[0], is_ready=True, calls=calls)]
    pool._check()
    assert (pool.death, pool._feeders, killed) == (error, [], [actor])
