from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.http.limits import (
    Pace,
    RequestSize,
    TokenBudget,
    TokenEstimate,
)


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
    assert estimate.of(RequestSize(400, 16)) == 116
    estimate.learn(RequestSize(400, 16), 40, 10)
    estimate.learn(RequestSize(200, 16), 20, 5)
    assert estimate.of(RequestSize(800, 16)) == 100


def test_a_request_may_take_its_bytes_and_max_tokens_or_twice_the_longest_answer() -> None:
    estimate = TokenEstimate()
    assert estimate.most(RequestSize(400, 16)) == 416
    assert estimate.most(RequestSize(400, None)) == 400
    estimate.learn(RequestSize(400, None), 90, 50)
    assert estimate.most(RequestSize(400, None)) == 500
    estimate.learn(RequestSize(400, 16), 430, 26)  # with a server's own prompt, and thoughts
    assert estimate.most(RequestSize(400, 16)) == 456
    assert estimate.most(RequestSize(400, 0)) == 440  # of a vector, which takes none


@pytest.mark.parametrize(
    ("size", "counts", "reply_bytes", "is_absurd"),
    [
        (RequestSize(400, 16), (90, 16), 60, False), (RequestSize(400, None), (90, 30_000), 60, False),
        (RequestSize(400, 16), (9_000, 900), 60, False),  # a server's own prompt, and its thoughts
        (RequestSize(400, 0), (90, 0), 0, False), (RequestSize(400, 16), (90, 0), 0, False),
        (RequestSize(400, 16), (0, 0), 60, True), (RequestSize(400, 16), (90, 0), 60, True),
        (RequestSize(400, 16), (0, 5), 60, True), (RequestSize(400, None), (2_000_000_000, 5), 60, True),
        (RequestSize(400, 16), (90, 2_000_000), 60, True),
        (RequestSize(400, 16), (90, 1), 200, False), (RequestSize(400, 16), (90, 1), 8_000, True),
        (RequestSize(400, None), (90, 2_000_000_000), 60, True),
    ],
)  # fmt: skip
def test_counts_that_cannot_be_right_are_known(
    size: RequestSize, counts: tuple[int, int], reply_bytes: int, is_absurd: bool
) -> None:
    assert (size.find_absurdity(*counts, reply_bytes) is not None) == is_absurd


def test_budget_ends_the_slice_before_more_is_spent() -> None:
    async def spend() -> None:
        budget = TokenBudget(100, TokenEstimate())
        first = await budget.reserve(RequestSize(50, 10))
        waits = asyncio.create_task(budget.reserve(RequestSize(50, 10)))
        await asyncio.sleep(0)
        assert not waits.done()  # what is in flight may leave enough
        await budget.settle(first, 30, is_guess=False)
        await budget.settle(await waits, 60, is_guess=True)
        await budget.settle(await budget.reserve(RequestSize(10, 0)), 10, is_guess=False)
        message = (
            "has spent 100 tokens (60 of them estimated: the endpoint did not count them), and the next "
            "request may take 1 more, which is over engine.token_budget 100"
        )
        with pytest.raises(SliceError, match=re.escape(message)) as caught:
            await budget.reserve(RequestSize(1, 0))
        assert caught.value.kind == "input"

    asyncio.run(spend())


def test_where_nothing_limits_answers_as_many_are_asked_for_as_were_answered() -> None:
    async def spend() -> None:
        size, estimate = RequestSize(1, None), TokenEstimate()
        budget = TokenBudget(1000, estimate)
        first = await budget.reserve(size)
        waiting = [asyncio.create_task(budget.reserve(size)) for _ in range(9)]
        for answered, in_flight in ((0, 0), (1, 2), (2, 3)):
            await asyncio.sleep(0.01)
            assert sum(task.done() for task in waiting) - max(0, answered - 1) == in_flight
            estimate.learn(size, 1, 1)
            await budget.settle(first, 2, is_guess=False)
        for task in waiting:
            task.cancel()

    asyncio.run(spend())
