"""How a worker's finished rows leave it: by a feeder's newest call, in groups worth sending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.vllm.worker import streams
from airflow_provider_raydatallm.processor.engines.vllm.worker.streams import RowStreams
from tests.support.async_tests import async_test


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "GROUP_SECONDS", 0.02)
    monkeypatch.setattr(streams, "_SLOW_GROUP_SECONDS", 0.06)


class Engine:
    """Answers a row when its event is set."""

    def __init__(self) -> None:
        self.streams = RowStreams()
        self.gates: dict[int, asyncio.Event] = {}
        self.cancelled: list[int] = []

    def row(self, number: int) -> tuple[int, Callable[[], Coroutine[Any, Any, tuple[Any, ...]]]]:
        async def answer() -> tuple[Any, ...]:
            try:
                await self.gates.setdefault(number, asyncio.Event()).wait()
            except asyncio.CancelledError:
                self.cancelled.append(number)
                raise
            return (f"answer {number}",)

        return number, answer

    def call(self, *numbers: int, feeder: str = "f") -> asyncio.Task[list[list[int]]]:
        """The numbers of the rows in each group of a call."""

        async def groups() -> list[list[int]]:
            found = self.streams.groups(feeder, [self.row(n) for n in numbers])
            return [sorted(row for row, _ in group) async for group in found]

        return asyncio.create_task(groups())

    async def finish(self, *numbers: int) -> None:
        for number in numbers:
            self.gates.setdefault(number, asyncio.Event()).set()
        await asyncio.sleep(0.1)


@async_test
async def test_next_call_of_a_feeder_takes_over_the_unfinished_rows_of_the_one_before() -> None:
    engine = Engine()
    first = engine.call(1, 2, 3)
    await engine.finish(1)
    second = engine.call(4)
    assert await asyncio.wait_for(first, 5) == [[1]]
    await engine.finish(2, 4)
    third = engine.call(5)
    await engine.finish(5, 3)
    assert [row for group in await second for row in group] == [2, 4]
    assert sorted(row for group in await third for row in group) == [3, 5]


@async_test
async def test_feeders_do_not_get_each_others_rows() -> None:
    engine = Engine()
    one, two = engine.call(1, 2, feeder="one"), engine.call(11, feeder="two")
    await engine.finish(11)
    assert await two == [[11]]
    await engine.finish(1, 2)
    assert await one == [[1, 2]]


@async_test
async def test_rows_that_finish_together_leave_together() -> None:
    engine = Engine()
    rows = range(100)
    call = engine.call(*rows)
    for number in rows:
        engine.gates.setdefault(number, asyncio.Event()).set()
        await asyncio.sleep(0.001)
    assert len(await call) < 20


@async_test
async def test_row_that_finishes_while_others_run_does_not_wait_for_them() -> None:
    engine = Engine()
    groups = engine.streams.groups("f", [engine.row(n) for n in range(50)])
    engine.gates[7] = asyncio.Event()
    engine.gates[7].set()
    assert await asyncio.wait_for(anext(groups), 5) == [(7, ("answer 7",))]
    await groups.aclose()


@async_test
async def test_rows_of_a_feeder_that_is_gone_are_cancelled_with_its_newest_call_only() -> None:
    engine = Engine()
    first = engine.streams.groups("f", [engine.row(1)])
    waiting = asyncio.create_task(anext(first, None))
    await asyncio.sleep(0.01)
    second = engine.streams.groups("f", [engine.row(2)])
    newest = asyncio.create_task(anext(second, None))
    await asyncio.sleep(0.01)
    assert await waiting is None
    await first.aclose()
    assert engine.cancelled == []
    newest.cancel()
    await asyncio.sleep(0.01)
    assert sorted(engine.cancelled) == [1, 2]


@async_test
async def test_rows_that_others_answered_are_cancelled_and_the_call_ends_without_them() -> None:
    engine = Engine()
    call = engine.call(1, 2)
    await engine.finish(2)
    engine.streams.cancel("f", [1, 4711])
    engine.streams.cancel("another", [2])
    assert await asyncio.wait_for(call, 5) == [[2]]
    assert engine.cancelled == [1]
