from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.http.limits import Pace, TokenBudget, TokenEstimate


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, late: float = 0.0) -> None:
        """:param late: seconds that each sleep takes longer."""
        self.now, self._late = 100.0, late
        self._sleep = asyncio.sleep
        monkeypatch.setattr("asyncio.sleep", self._pass)

    async def _pass(self, seconds: float) -> None:
        self.now += seconds + self._late
        await self._sleep(0)

    def __call__(self) -> float:
        return self.now


async def starts(pace: Pace, clock: Clock, amounts: list[float], corrections: Any = ()) -> list[float]:
    began, times = clock.now, []
    for amount in amounts:
        await pace.take(amount)
        times.append(clock.now - began)
        for correction in corrections:
            pace.correct(correction)
    return times


@pytest.mark.parametrize("late", [0.0, 0.05, 0.5])
def test_a_minute_has_as_many_as_it_may_also_on_a_machine_that_is_late(
    monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    clock = Clock(monkeypatch, late=late)
    times = asyncio.run(starts(Pace(6000, clock), clock, [1.0] * 18_000))
    for begin in (0, 30, 60, 110):
        assert 6000 * 0.98 <= sum(begin <= t < begin + 60 for t in times) <= 6000 * 1.02


def test_idle_time_is_not_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(6000, clock)
    clock.now += 3600
    times = asyncio.run(starts(pace, clock, [1.0] * 12_000))
    assert sum(t < 60 for t in times) <= 6000 * 1.02


def test_estimates_are_made_up_for_when_the_tokens_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    # 100 tokens were estimated, and the answer took 250.
    times = asyncio.run(starts(Pace(60_000, clock), clock, [100.0] * 1000, [150.0]))
    assert len(times) * 250 / times[-1] * 60 == pytest.approx(60_000, rel=0.02)


def test_pause_holds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(None, clock)
    pace.pause(5)
    assert asyncio.run(starts(pace, clock, [1.0, 1.0])) == [5, 5]


def test_estimate_learns() -> None:
    estimate = TokenEstimate()
    assert estimate.of(400, 16) == 116
    estimate.learn(400, 50)
    estimate.learn(200, 25)
    assert estimate.of(800, 16) == 100


def test_budget_ends_the_slice_before_more_is_spent() -> None:
    async def spend() -> None:
        budget = TokenBudget(100)
        await budget.reserve(60)
        waits = asyncio.create_task(budget.reserve(60))
        await asyncio.sleep(0)
        assert not waits.done()  # what is in flight may leave enough
        await budget.settle(60, 30)
        await waits
        await budget.settle(60, 60)
        await budget.reserve(10)
        await budget.settle(10, 10)
        message = "has spent 100 tokens, and the next request may take 1 more, which is over engine.token"
        with pytest.raises(SliceError, match=re.escape(message)) as caught:
            await budget.reserve(1)
        assert caught.value.kind == "input"

    asyncio.run(spend())
