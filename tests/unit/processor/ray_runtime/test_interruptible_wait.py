from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.ray_runtime.interruptible_wait import InterruptibleWait


def wait(seconds: float = 300.0) -> None:
    queue.Queue[Any]().get(timeout=seconds)


def test_look_happens_while_the_work_is_waited_for() -> None:
    looks: list[float] = []
    with InterruptibleWait(lambda: looks.append(time.monotonic()), 0.02):
        while len(looks) < 5:
            time.sleep(0.01)
    count = len(looks)
    time.sleep(0.1)
    assert len(looks) == count


def test_what_a_look_raises_ends_the_wait_and_leaves_it_in_order() -> None:
    left: list[str] = []

    def look() -> None:
        raise ValueError("stuck")

    def work() -> None:
        try:
            wait()
        finally:
            left.append("in order")

    with pytest.raises(ValueError, match="stuck"), InterruptibleWait(look, 0.05):
        work()
    assert left == ["in order"]


def test_what_the_work_itself_raises_is_not_hidden() -> None:
    with pytest.raises(KeyError), InterruptibleWait(lambda: None, 0.01):
        raise KeyError("own")


def test_work_in_another_thread_ends_first() -> None:
    found: list[BaseException] = []
    looked = threading.Event()

    def look() -> None:
        looked.set()
        raise ValueError("stuck")

    def run() -> None:
        try:
            with InterruptibleWait(look, 0.01):
                looked.wait()
        except ValueError as e:
            found.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [str(e) for e in found] == ["stuck"]


def test_error_that_comes_as_the_work_ends_disturbs_nothing_later() -> None:
    def look() -> None:
        raise ValueError("late")

    for _ in range(200):
        try:
            with InterruptibleWait(look, 0.001):
                time.sleep(0.001)
        except ValueError:
            pass
        sum(range(2000))
