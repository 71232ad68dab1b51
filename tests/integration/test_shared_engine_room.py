"""Shared engines on CPUs do not pile up in a node's memory: real Ray and Ray Serve, and workers that run no
model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared import engine as engine_module
from airflow_provider_raydatallm.processor.engines.shared.engine import SharedVllmEngine
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SERVE
from airflow_provider_raydatallm.processor.inference.admission import admit
from airflow_provider_raydatallm.processor.sizing.cluster_probe import probe_cluster
from airflow_provider_raydatallm.processor.sizing.facts import SizingInputs
from tests.support.in_process import job_of
from tests.support.paths import ROOT
from tests.support.waiting import wait_for

#: Ray's own, while it imports.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")

#: An engine holds 2 GiB for its cache and 1.5 GB for its processes: two of them fit, and three do not.
_MEMORY = 9e9


class _Replica:
    def __init__(self, app: str, arguments: dict[str, Any]) -> None:
        pass


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(engine_module, "SharedVllmReplica", _Replica)
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))  # Unix sockets need a short path
    options: dict[str, Any] = {"include_dashboard": False, "logging_level": "warning"}
    options["runtime_env"] = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init("local", num_cpus=8, _memory=_MEMORY, _temp_dir=str(folder), **options)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def started(limit: int, *, queue_s: float = 120) -> SharedVllmEngine:
    """An engine that a slice has started and uses; each with another `max_model_len`."""
    job = job_of(
        input_path="in", output_path="out", engine="vllm", engine__scope="shared", model_source="m",
        engine__kwargs={"max_model_len": limit},
    )  # fmt: skip
    engine = SharedVllmEngine(job, 10)
    engine.choose_sizes(SizingInputs(probe_cluster()))

    def make_room() -> None:
        SERVE.stop_idle_engine(keep=engine.engine_to_keep)

    slot = admit(engine, name="a", timeout_s=queue_s, on_wait=lambda waiting: None, make_room=make_room)
    engine.on_admitted()
    engine._start()
    wait_for(lambda: there(engine) == {"RUNNING": 1})
    slot.release()
    return engine


def there(engine: SharedVllmEngine) -> Any:
    found = SERVE.engine(engine.name)
    return found and found.workers


def test_engine_that_is_idle_longest_ends_for_another_and_none_that_is_used(node: None) -> None:
    first, second = started(64), started(128)
    second.stop()
    first.stop()  # the second one is idle for longer
    third = started(256)
    assert (there(first), there(second), there(third)) == ({"RUNNING": 1}, None, {"RUNNING": 1})
    third.stop()
    first.on_admitted()  # in use again, and the third one is not
    fourth = started(512)
    assert (there(first), there(third), there(fourth)) == ({"RUNNING": 1}, None, {"RUNNING": 1})
    with pytest.raises(
        SliceError, match=r"no room .* 3\.6 GB of memory and 4 CPUs at once, 1\.\d GB of"
    ) as e:
        started(1024, queue_s=5)
    assert e.value.kind == "queue"
    assert there(first) == there(fourth) == {"RUNNING": 1}
