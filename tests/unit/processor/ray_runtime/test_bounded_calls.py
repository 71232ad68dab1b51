from __future__ import annotations

import threading

import pytest

from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import Poll, call_within


def test_call_returns_raises_or_is_left_behind() -> None:
    assert call_within(60, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_within(60, lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        call_within(0.01, threading.Event().wait)


def test_poll_has_one_call_on_its_way_and_returns_each_result_once() -> None:
    resumed, calls = threading.Event(), list[int]()

    def ask() -> int:
        calls.append(1)
        resumed.wait()
        return len(calls)

    poll = Poll(ask)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            poll.news(0.01)
    assert len(calls) == 1
    resumed.set()
    assert [poll.news(60), poll.news(60)] == [1, 2]
