"""Where Ray puts a worker whose GPUs may be on several nodes. The GPUs are made up: Ray only counts them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import get_current_placement_group

from airflow_provider_raydatallm.processor.engines.vllm import engine_base
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.repetition import RepetitionSample
from tests.support.in_process import job_of
from tests.support.paths import ROOT
from tests.support.waiting import wait_for


@pytest.fixture
def two_gpus() -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))  # Unix sockets need a short path
    options: dict[str, Any] = {"include_dashboard": False, "logging_level": "warning"}
    options["runtime_env"] = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init("local", num_cpus=2, num_gpus=2, _temp_dir=str(folder), **options)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


class PlacedWorker:
    """Tells what vLLM's Ray executor would see in its place."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments

    async def ready(self) -> dict[str, Any]:
        group = get_current_placement_group()
        assigned = ray.get_runtime_context().get_assigned_resources()
        process = {"process": {}, "startup_seconds": {}}
        return {**process, "bundles": group and group.bundle_specs, "assigned": assigned}

    async def wait_forever(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> RepetitionSample:
        return RepetitionSample()


class PlacedEngine(VllmEngine):
    worker = PlacedWorker  # type: ignore[assignment]


@pytest.mark.long
def test_group_of_a_worker_holds_its_gpus_until_the_engine_stops(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_base, "vllm_is_cpu_build", lambda accelerator_type: False)
    kwargs = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    engine = PlacedEngine(
        job_of(input_path="in", output_path="out", engine="vllm", engine__kwargs=kwargs), 10
    )
    engine._start()
    assert engine._workers is not None
    wait_for(lambda: engine._workers.check() or engine._workers.is_ready)  # type: ignore[union-attr]
    [placed] = engine._workers._workers
    worker = ray.get(placed._ready)
    assert worker["bundles"] == [{"CPU": 1.0, "GPU": 1.0}, {"GPU": 1.0}]
    assert worker["assigned"] == {"CPU": 1.0}  # the GPUs are left to the actors of vLLM's executor
    wait_for(lambda: not ray.available_resources().get("GPU"))
    engine.stop()
    wait_for(lambda: ray.available_resources().get("GPU") == 2)
