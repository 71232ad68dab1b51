from __future__ import annotations

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.inference.stall import START_SECONDS, StallWatch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stall_watch(clock: Clock, rows: int, *, waiting: str = "") -> StallWatch:
    return StallWatch(rows, 60, lambda: True, lambda: waiting, clock)


def test_stall_time_counts_from_the_engines_start(clock: Clock) -> None:
    watch = stall_watch(clock, 100, waiting="3 x Feeder RUNNING")
    clock.now = 1000.0
    watch.observe(0, engine_started=False)  # a large model loads slowly
    watch.observe(0, engine_started=True)
    clock.now += 59
    watch.observe(0, engine_started=True)
    clock.now += 1
    with pytest.raises(SliceError, match=r"no row finished for 60 s \(limits.stall\) while 100 rows") as e:
        watch.observe(0, engine_started=True)
    assert "3 x Feeder RUNNING" in str(e.value)
    assert e.value.kind == "engine"


def test_rows_without_an_engine_do_not_count_as_its_start(clock: Clock) -> None:
    watch = stall_watch(clock, 100)
    watch.observe(50, engine_started=False)  # from the answer cache
    clock.now = 1000.0
    watch.observe(0, engine_started=False)
    watch.observe(0, engine_started=True)
    clock.now += 59
    watch.observe(0, engine_started=True)
    clock.now += 1
    with pytest.raises(SliceError, match="while 50 rows wait"):
        watch.observe(0, engine_started=True)


def test_each_row_restarts_the_stall_time_and_after_the_last_the_run_ends_in_time(clock: Clock) -> None:
    watch = stall_watch(clock, 3)
    for _ in range(3):
        clock.now += 59
        watch.observe(1, engine_started=False)
    watch.observe(0, engine_started=True)
    clock.now += 60
    with pytest.raises(SliceError, match=r"no row finished for 60 s .* while the run is to end"):
        watch.observe(0, engine_started=True)


def test_engine_without_a_ready_signal_counts_from_its_first_row(clock: Clock) -> None:
    watch = stall_watch(clock, 3)
    clock.now = 1000.0
    watch.observe(0, engine_started=False)
    watch.observe(1, engine_started=True)
    clock.now += 60
    with pytest.raises(SliceError, match=r"while 2 rows wait\. Run the slice again"):
        watch.observe(0, engine_started=False)


def test_start_of_an_engine_has_a_limit(clock: Clock) -> None:
    watch = stall_watch(clock, 3)
    while clock.now < START_SECONDS - 60:
        clock.now += 60
        watch.observe(0, engine_started=False)
    clock.now += 60
    with pytest.raises(SliceError, match="while 3 rows wait"):
        watch.observe(0, engine_started=False)


def test_engine_that_nothing_starts_counts_from_the_beginning(clock: Clock) -> None:
    starting = True
    watch = StallWatch(3, 60, lambda: starting, lambda: "1 x Worker (actor) PENDING_CREATION", clock)
    for _ in range(3):
        clock.now += 60
        watch.observe(0, engine_started=False)
    starting = False
    clock.now += 59
    watch.observe(0, engine_started=False)
    clock.now += 1
    with pytest.raises(SliceError, match=r"while 3 rows wait: 1 x Worker \(actor\) PENDING_CREATION\."):
        watch.observe(0, engine_started=False)
