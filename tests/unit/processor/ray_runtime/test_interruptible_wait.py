from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime.interruptible_wait import InterruptibleWait


def wait(seconds: float = 300.0) -> None:
    queue.Queue[Any]().get(timeout=seconds)


def test_check_runs_during_the_wait_only() -> None:
    checks: list[float] = []
    with InterruptibleWait(lambda: checks.append(time.monotonic()), 0.02, 60):
        while len(checks) < 5:
            time.sleep(0.01)
    count = len(checks)
    time.sleep(0.1)
    assert len(checks) == count


def test_error_of_a_check_ends_the_wait_in_order() -> None:
    steps: list[str] = []

    def check() -> None:
        raise ValueError("stuck")

    def work() -> None:
        try:
            wait()
        finally:
            steps.append("in order")

    with pytest.raises(ValueError, match="stuck"), InterruptibleWait(check, 0.05, 60):
        work()
    assert steps == ["in order"]


def test_error_of_the_work_itself_is_raised() -> None:
    with pytest.raises(KeyError), InterruptibleWait(lambda: None, 0.01, 60):
        raise KeyError("own")


def test_error_of_a_check_is_raised_whatever_the_interrupted_work_makes_of_it() -> None:
    def check() -> None:
        raise ValueError("stuck")

    def work() -> None:
        try:
            wait()
        except BaseException as e:
            raise SystemError("returned a result with an exception set") from e

    with pytest.raises(ValueError, match="stuck"), InterruptibleWait(check, 0.01, 60):
        work()


def test_check_that_hangs_ends_the_wait() -> None:
    resumed = threading.Event()
    with (
        pytest.raises(SliceError, match=r"could not be checked for 0\.05 s"),
        InterruptibleWait(lambda: resumed.wait() or None, 0.01, 0.05),
    ):
        wait()
    resumed.set()


def test_work_in_another_thread_ends_first() -> None:
    errors: list[BaseException] = []
    checked = threading.Event()

    def check() -> None:
        checked.set()
        raise ValueError("stuck")

    def run() -> None:
        try:
            with InterruptibleWait(check, 0.01, 60):
                checked.wait()
        except ValueError as e:
            errors.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [str(e) for e in errors] == ["stuck"]


def test_error_at_the_end_of_the_work_disturbs_nothing_later() -> None:
    def check() -> None:
        raise ValueError("late")

    for _ in range(200):
        try:
            with InterruptibleWait(check, 0.001, 60):
                time.sleep(0.001)
        except ValueError:
            pass
        sum(range(2000))
