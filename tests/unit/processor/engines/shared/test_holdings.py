"""Which shared engines a run that had no memory names."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import OutOfMemoryError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.holdings import name_engines_that_hold_memory
from airflow_provider_raydatallm.processor.root_error import root_error
from tests.support.fake_serve import ENGINE, FakeServe

GB = 1e9
IDLE = replace(ENGINE, name="ray-llm-idle-0", workers={"RUNNING": 1}, idle_s=95, worker={"memory": 3.6 * GB})
USED = replace(
    ENGINE, name="ray-llm-used-0", workers={"RUNNING": 2}, users=("s3://a",), worker={"memory": 2 * GB}
)
NAMED = (
    "Shared engines hold memory, too: ray-llm-idle-0 (holds 3.6 GB of memory, idle for 95 s), "
    "ray-llm-used-0 (holds 4.0 GB of memory, in use). `airflow-ray-llm engines stop NAME` ends one"
)


def advice_of(error: Exception) -> tuple[str, ...]:
    name_engines_that_hold_memory(error, cast("Any", SimpleNamespace(engine_to_keep="ray-llm-own-0")))
    return root_error(error).advice


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    fake = FakeServe()
    own = replace(IDLE, name="ray-llm-own-0")
    fake.present = [USED, own, replace(IDLE, name="ray-llm-none-0", workers={}), IDLE]
    monkeypatch.setattr(serve_apps, "SERVE", fake)
    return fake


@pytest.mark.parametrize("error", [
    OutOfMemoryError("Task was killed due to the node running low on memory."),
    SliceError("the engine died", kind="gpu_memory", advice="Lower it"),
    SliceError("a worker was killed by SIGKILL (exit code -9)", kind="engine"),
    RuntimeError(
        "the shared engine could not be started: ValueError: Free memory on device cuda:0 (1/80 GiB) on "
        "startup is less than desired GPU memory utilization (0.9, 72 GiB)"
    ),
])  # fmt: skip
def test_run_that_had_no_memory_names_the_engines_that_hold_some(serve: FakeServe, error: Exception) -> None:
    before = root_error(error)
    assert advice_of(error) == (*before.advice, NAMED)
    assert root_error(error).kind == before.kind


def test_other_failures_name_none_and_nothing_hides_the_error(serve: FakeServe) -> None:
    assert advice_of(SliceError("no model", kind="model")) == ()
    serve.is_reachable = False
    assert advice_of(SliceError("no memory", kind="gpu_memory")) == ()
