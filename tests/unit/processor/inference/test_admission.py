from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.processor.inference.admission import admit, bundles_of
from airflow_provider_raydatallm.processor.sizing.facts import Resources

L4 = {"GPU": 1, "accelerator_type:L4": 0.001}


@pytest.mark.parametrize(
    ("cpus", "gpus", "kind", "bundles"),
    [
        (3, 0, None, [{"CPU": 1}] * 3),
        (2.5, 0, None, [{"CPU": 1}, {"CPU": 1}, {"CPU": 0.5}]),
        (3, 2, None, [{"GPU": 1, "CPU": 1}, {"GPU": 1, "CPU": 1}, {"CPU": 1}]),
        (1, 2, "L4", [L4 | {"CPU": 1}, L4]),
        (0.1 + 0.2, 0.5, None, [{"GPU": 0.5, "CPU": pytest.approx(0.3)}]),
        (0, 0, None, []),
    ],
)  # fmt: skip
def test_resources_are_requested_in_bundles_that_fit_on_any_node(
    cpus: float, gpus: float, kind: str | None, bundles: list[dict[str, float]]
) -> None:
    assert bundles_of(Resources(cpus=cpus, gpus=gpus, breakdown=""), kind) == bundles


def test_gpus_of_a_worker_are_requested_on_one_node() -> None:
    needs = Resources(cpus=4, gpus=8, breakdown="", gpus_on_one_node=4)
    whole = L4 | {"GPU": 4, "CPU": 1}
    assert bundles_of(needs, "L4") == [whole, whole, {"CPU": 1}, {"CPU": 1}]


def test_memory_of_each_worker_is_requested_on_one_node() -> None:
    needs = Resources(cpus=3, gpus=0, breakdown="", memory=(4_000, 4_000))
    assert bundles_of(needs, None) == [{"CPU": 1, "memory": 4_000}] * 2 + [{"CPU": 1}]


def test_waiting_job_logs_its_needs_and_the_jobs_ahead() -> None:
    waiting = {
        "step": "queued", "waited_s": 95.4, "needs": {"CPU": 9, "GPU": 4}, "free": {"CPU": 30.5, "GPU": 2},
        "ahead": ["s3://lake/out/ds=2026-01-30", "s3://lake/out/ds=2026-01-31"],
    }  # fmt: skip
    assert progress_text(waiting) == (
        "queued: waited 95 s for 4 GPUs and 9 CPUs at once, 2 GPUs and 30.5 CPUs are free, "
        "behind s3://lake/out/ds=2026-01-30 and 1 more"
    )
    memory = progress_text({**waiting, "needs": {"memory": 3.6e9}, "free": {"memory": 0}, "ahead": []})
    assert memory == "queued: waited 95 s for 3.6 GB of memory at once, 0.0 GB of memory are free"
    alone = progress_text({**waiting, "needs": {"CPU": 3}, "free": {"CPU": 0}, "ahead": []})
    assert alone == "queued: waited 95 s for 3 CPUs at once, 0 CPUs are free"


def test_running_engine_is_admitted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        job = SimpleNamespace(engine=SimpleNamespace(gpu=None))
        queries = 0

        @property
        def resources_needed_now(self) -> Resources:
            self.queries += 1
            return Resources(0, 0, "")

    def never(*arguments: Any) -> None:
        raise AssertionError("it waits")

    engine: Any = Engine()
    monkeypatch.setattr("airflow_provider_raydatallm.processor.inference.admission.try_lock", never)
    admit(engine, name="a", timeout_s=0, on_wait=never, make_room=never).release()
    assert engine.queries == 1
