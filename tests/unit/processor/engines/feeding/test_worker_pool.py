from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError

from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import OwnWorker, WorkerDiedError


@pytest.mark.parametrize("error", [ActorDiedError(), OutOfMemoryError("1 worker(s) were killed")])
def test_a_worker_that_ray_ended_has_died_also_where_its_node_was_short_of_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def get(ref: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    stream = SimpleNamespace(remote=lambda rows, feeder: ["group"])
    ready = SimpleNamespace(remote=lambda: "ref")
    handle: Any = SimpleNamespace(generate=SimpleNamespace(options=lambda **_: stream), ready=ready)
    worker = OwnWorker("0", "actor", handle, "feeder")
    with pytest.raises(WorkerDiedError) as died:
        list(worker.generate(pa.table({})))
    assert (worker.is_dead, died.value.by_itself) == (True, False)
