"""When a worker that died is started again, and when it is given up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError

from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.own_workers import RESTARTS, OwnWorkers, _Worker
from tests.support.slice_jobs import slice_job


def worker(restarts: Sequence[float] | None = RESTARTS) -> Any:
    made: Any = _Worker.__new__(_Worker)
    made.name, made._restarts, made._deaths, made._process = "0", restarts, 0, {}
    made.error = made._ready_at = None
    return made


def die(made: Any, lived_s: float = 1.0) -> float:
    """Seconds until it is started again."""
    made._ready_at = time.monotonic() - lived_s
    made._die(Exception("worker process has died"))
    return round(made._next_start - time.monotonic())


def test_worker_is_started_again_after_longer_and_longer_pauses_and_given_up_at_the_fourth_death() -> None:
    made = worker()
    for pause in (0, 10, 60):
        assert (die(made), made.is_given_up) == (pause, False)
    die(made)
    assert made.is_given_up
    assert "died 4 time(s) in a row" in str(made.error)


def test_worker_that_ray_ended_for_want_of_memory_is_given_up_with_that() -> None:
    made = worker([])
    made._ready_at = time.monotonic()
    made._die(
        OutOfMemoryError("9 worker(s) were killed due to the node running low on memory.\nMemory on ...")
    )
    failure = made.error.failure
    assert failure.sentence.endswith(
        "no other is left: OutOfMemoryError: 9 worker(s) were killed due to the node running low on memory"
    )
    assert failure.advice[0].startswith("The node ran out of memory")


def test_ten_minutes_of_life_begin_a_new_row_of_deaths() -> None:
    made = worker()
    for _ in range(3):
        die(made)
    assert (die(made, lived_s=601), made.is_given_up) == (0, False)
    assert (die(made, lived_s=599), made.is_given_up) == (10, False)


@pytest.mark.parametrize("deaths", [1, 20])
def test_worker_for_suspects_is_started_again_at_once_as_often_as_it_takes(deaths: int) -> None:
    made = worker(None)
    for _ in range(deaths):
        assert (die(made), made.is_given_up) == (0, False)


class Idle(_Worker):
    """Has no row, and notes that it was stopped or started."""

    def __init__(self, *, is_ready: bool = True, **options: Any) -> None:
        self.name, self._options, self.error = "0", options, None
        self._ready_at = 1.0 if is_ready else None
        self.is_released, self.was_ready, self.starts = False, is_ready, 0
        self.handle = None

    def is_idle(self) -> bool:
        return True

    def start(self) -> None:
        self.is_released, self._ready_at, self.starts = False, None, self.starts + 1


def own_workers(*workers: Idle, fewest: int = 1) -> Any:
    made: Any = OwnWorkers.__new__(OwnWorkers)
    made._workers, made._fewest, made.repetition = list(workers), fewest, []
    return made


def running(workers: Any) -> int:
    return sum(not worker.is_released for worker in workers._workers)


@pytest.mark.parametrize(("rows", "left"), [(0, 1), (1, 1), (100, 1), (101, 2), (299, 3), (1000, 3)])
def test_idle_workers_end_whose_place_the_last_rows_do_not_need(rows: int, left: int) -> None:
    workers = own_workers(Idle(), Idle(), Idle())
    workers.fit(rows, 100, None)
    assert running(workers) == left
    workers.fit(1000, 100, None)  # of the engine's next run
    assert running(workers) == 3
    assert sum(worker.starts for worker in workers._workers) == 3 - left


def test_nodes_that_have_no_worker_any_more_are_named() -> None:
    workers = own_workers(*(Idle() for _ in range(4)))
    for worker, node in zip(workers._workers, ("a", "a", "b", "c"), strict=True):
        worker._process = {"node_id": node}
    assert workers.fit(201, 100, None) == set()  # another one is there
    assert workers.fit(101, 100, None) == {"a"}


def test_worker_that_starts_or_has_a_group_of_gpus_does_not_end() -> None:
    workers = own_workers(
        Idle(is_ready=False), Idle(scheduling_strategy="group"), Idle(scheduling_strategy="")
    )
    workers.fit(1, 100, None)
    assert running(workers) == 3


def test_as_many_workers_start_as_finish_in_time() -> None:
    workers = own_workers(*(Idle() for _ in range(8)), fewest=2)
    for worker in workers._workers[2:]:
        worker.is_released = True
    workers.fit(10_000, 100, 1)  # nothing is known yet
    assert running(workers) == 2
    workers.fit(200, 100, 4)  # the two that run have all rows
    assert running(workers) == 2
    workers.fit(10_000, 100, 4)
    assert running(workers) == 4
    workers.fit(10_000, 100, 6)  # two start: what they do is not known yet
    assert running(workers) == 4
    for worker in workers._workers[:4]:
        worker._ready_at = 1.0
    workers.fit(10_000, 100, 3)
    assert running(workers) == 4
    workers.fit(10_000, 100, 6)
    assert running(workers) == 6
    workers.fit(10_000, 100, None)
    assert running(workers) == 8


class Broken(Idle):
    """Cannot start."""

    def __init__(self) -> None:
        super().__init__(is_ready=False)
        self.error = RuntimeError("the actor died in its creation task")
        self._restarts, self._deaths = (0.0,), 1

    def check(self) -> None:
        """It died before."""


@pytest.mark.parametrize("was_ready", [False, True])
def test_engine_that_cannot_start_starts_no_others(was_ready: bool) -> None:
    workers = own_workers(*(Broken() for _ in range(4)))
    workers._workers[0].was_ready, workers.startup_seconds = was_ready, {"load": 1.0}
    workers._workers[0]._deaths = 2
    for worker in workers._workers[1:]:
        worker.is_released = True
    with nullcontext() if was_ready else pytest.raises(RuntimeError, match="creation task"):
        workers.check()
    assert [worker.starts for worker in workers._workers] == [0, *[int(was_ready)] * 3]


def test_place_of_a_worker_that_was_given_up_is_filled() -> None:
    workers = own_workers(*(Idle() for _ in range(4)), fewest=2)
    lost, *released = workers._workers[1:]
    lost.error, lost._restarts, lost._deaths = RuntimeError("it died"), (), 1
    for worker in released:
        worker.is_released = True
    workers.fit(10_000, 100, 2)
    assert [worker.starts for worker in workers._workers] == [0, 0, 1, 0]


@pytest.mark.parametrize(("asked", "wanted"), [((2, 8), 3), ("auto", None), (8, 3)])
def test_only_bounds_of_the_jobs_own_are_held_to_the_deadline(asked: Any, wanted: int | None) -> None:
    engine: Any = VllmEngine(slice_job(model_source="m/m", engine__workers=asked), 1000)
    given: list[tuple[Any, ...]] = []
    engine._workers = SimpleNamespace(fit=lambda *fit: given.append(fit))
    engine.fit_workers(700, 3)
    assert given == [(700, engine.row_budget.rows, wanted)]
