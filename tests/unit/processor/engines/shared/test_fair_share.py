from __future__ import annotations

import asyncio

from airflow_provider_raydatallm.processor.engines.shared.fair_share import FairShare
from tests.support.async_tests import async_test


class Engine:
    """Records who gets a slot, in which order; `leave` frees one."""

    def __init__(self, slots: int) -> None:
        self.share = FairShare(slots)
        self.began: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}

    async def ask(self, user: str, number: int) -> None:
        name = f"{user}{number}"
        async with self.share.slot(user):
            self.began.append(name)
            await self._leave.setdefault(name, asyncio.Event()).wait()

    async def leave(self, name: str) -> None:
        self._leave.setdefault(name, asyncio.Event()).set()
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@async_test
async def test_small_user_gets_every_second_slot_beside_a_large_one() -> None:
    engine = Engine(2)
    tasks = [asyncio.create_task(engine.ask("a", n)) for n in range(6)]
    await settle()
    tasks += [asyncio.create_task(engine.ask("b", n)) for n in range(2)]
    await settle()
    assert engine.began == ["a0", "a1"]
    for done in range(6):
        await engine.leave(engine.began[done])
    assert engine.began == ["a0", "a1", "a2", "b0", "a3", "b1", "a4", "a5"]
    for name in engine.began[6:]:
        await engine.leave(name)
    await asyncio.gather(*tasks)


@async_test
async def test_cancelled_request_keeps_no_slot() -> None:
    engine = Engine(1)
    first, second, third = (asyncio.create_task(engine.ask("a", n)) for n in range(3))
    await settle()
    second.cancel()
    await settle()
    await engine.leave("a0")
    assert engine.began == ["a0", "a2"]
    fourth = asyncio.create_task(engine.ask("b", 0))
    await settle()
    engine._leave["a2"].set()
    await asyncio.sleep(0)  # the slot was granted to the fourth, which has not resumed yet
    assert engine.began == ["a0", "a2"]
    fourth.cancel()
    await settle()
    fifth = asyncio.create_task(engine.ask("c", 0))
    await settle()
    assert engine.began[-1] == "c0"
    await engine.leave("c0")
    await asyncio.gather(first, third, fifth)
