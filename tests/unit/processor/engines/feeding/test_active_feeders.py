"""Feeders that have rows to send share the workers; the others leave them their part."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.processor.engines.feeding import active_feeders
from airflow_provider_raydatallm.processor.engines.feeding.active_feeders import ActiveFeeders
from tests.support.key_value_store import replace_store


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(active_feeders, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    return replace_store(monkeypatch)


def test_only_feeders_with_rows_to_send_have_a_place(clock: Clock) -> None:
    a, b, c = (ActiveFeeders("run") for _ in range(3))
    assert a.place("a", True) == (0, 1)
    assert b.place("b", True) == (1, 2)
    assert c.place("c", False) == (0, 1)  # it has nothing to send
    clock.now += 3
    assert [a.place("a", True), b.place("b", False)] == [(0, 2), (1, 2)]  # it may get a block at once
    clock.now += 3
    b.place("b", False)
    assert a.place("a", True) == (0, 1)
    assert b.place("b", True) == (1, 2)  # and is there again at once
    assert ActiveFeeders("another run").place("a", True) == (0, 1)


def test_share_of_a_feeder_that_died_goes_to_the_others_soon(clock: Clock) -> None:
    a, b = ActiveFeeders("run"), ActiveFeeders("run")
    ActiveFeeders("run").place("0", True)  # and dies
    places = []
    for _ in range(12):
        places.append((a.place("a", True), b.place("b", True)))
        clock.now += 1
    assert places[1][1] == (2, 3)
    assert places[-1] == ((0, 2), (1, 2))


def test_feeder_counts_for_as_long_as_it_has_rows_and_is_no_longer_there_when_it_has_none(
    clock: Clock, keys: dict[str, bytes]
) -> None:
    a, b = ActiveFeeders("run"), ActiveFeeders("run")
    for _ in range(60):
        a.place("a", True)
        clock.now += 1
        assert b.place("b", True)[1] == 2
    assert len(keys) == 2
    for _ in range(4):  # of a slice whose rows are all sent, nobody adds an entry
        keys.clear()
        a.place("a", False)
        clock.now += 1
        assert keys == {}
    b.place("b", True)
    b.forget()
    assert keys == {}
