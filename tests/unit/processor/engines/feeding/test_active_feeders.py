"""Feeders that have rows to send share the workers; the others leave them their part."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.processor.engines.feeding import active_feeders
from airflow_provider_raydatallm.processor.engines.feeding.active_feeders import ActiveFeeders


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, keys = Clock(), dict[bytes, bytes]()
    kv = "ray.experimental.internal_kv._internal_kv_"
    monkeypatch.setattr(f"{kv}put", keys.__setitem__)
    monkeypatch.setattr(f"{kv}del", lambda key: keys.pop(key, None))
    monkeypatch.setattr(f"{kv}list", lambda prefix: [key for key in keys if key.startswith(prefix)])
    monkeypatch.setattr(active_feeders, "time", clock)
    return clock


def test_only_feeders_with_rows_to_send_have_a_place(clock: Clock) -> None:
    a, b, c = (ActiveFeeders("run", 8) for _ in range(3))
    assert a.place("a", True) == (0, 1)
    assert b.place("b", True) == (1, 2)
    assert c.place("c", False) == (0, 1)  # it has nothing to send
    clock.now += 3
    assert [a.place("a", True), b.place("b", False)] == [(0, 2), (1, 2)]  # it may get a block at once
    clock.now += 3
    b.place("b", False)
    assert a.place("a", True) == (0, 1)
    assert b.place("b", True) == (1, 2)  # and is there again at once


def test_feeders_that_died_do_not_make_the_shares_too_small(clock: Clock) -> None:
    for dead in "cd":
        ActiveFeeders("run", 2).place(dead, True)
    places = [ActiveFeeders("run", 2).place(name, True) for name in "ab"]
    assert places == [(0, 2), (1, 2)]
    assert ActiveFeeders("another run", 2).place("a", True) == (0, 1)
