from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import (
    ANSWER_COLUMNS,
    DedupCoordinator,
    is_deterministic,
    request_key,
)

A, B, C = (request_key(c) for c in "abc")


def answers(*texts: str) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [None] * len(texts) for name in ANSWER_COLUMNS}
    return pa.table(columns | {"text": list(texts)})


def texts(found: pa.Table) -> list[str]:
    return found.column("text").to_pylist()


def test_only_answers_that_would_be_the_same_again_are_shared() -> None:
    def request(**params: Any) -> str:
        return json.dumps({"messages": [], "sampling_params": params})

    assert is_deterministic(request(temperature=0))
    assert is_deterministic(request(temperature=1.0, seed=0))
    assert not is_deterministic(request(temperature=0.1))
    assert not is_deterministic(request(seed=-1))
    assert not is_deterministic(request())  # vLLM's own temperature is 1


def test_request_is_answered_by_the_first_who_claims_it() -> None:
    async def play() -> None:
        hub = DedupCoordinator()
        assert await hub.claim("one", "1", [A, B]) == [True, True]
        assert await hub.claim("two", "1", [B, C]) == [False, True]
        await hub.put([A, B], answers("is a", "is b"))
        known, found, lost = await hub.take([B, A])
        assert (known, texts(found), lost) == ([0, 1], ["is b", "is a"], [])
        assert await hub.claim("two", "1", [A]) == [False]

    asyncio.run(play())


def test_row_that_failed_is_one_rows_bad_luck_until_another_fails_too() -> None:
    failed = answers("", "is b").set_column(
        ANSWER_COLUMNS.index("error"), "error", pa.array(["vLLM could not finish it", None])
    )

    async def play() -> None:
        hub = DedupCoordinator()
        assert await hub.claim("one", "1", [A, B]) == [True, True]
        await hub.put([A, B], failed)
        known, _, lost = await hub.take([A, B])
        assert (known, lost) == ([1], [0])
        assert await hub.claim("two", "1", [A, B]) == [True, False]
        await hub.put([A], failed.slice(0, 1))
        known, found, lost = await hub.take([A])
        assert (known, found.column("error").to_pylist(), lost) == ([0], ["vLLM could not finish it"], [])

    asyncio.run(play())


def test_claim_that_ray_makes_again_is_told_the_same() -> None:
    async def play() -> None:
        hub = DedupCoordinator()
        assert await hub.claim("one", "1", [A]) == [True]
        assert await hub.claim("one", "1", [A]) == [True]
        assert await hub.claim("one", "2", [A]) == [False]  # of another thread

    asyncio.run(play())


def test_who_takes_waits_for_who_answers() -> None:
    async def play() -> None:
        hub = DedupCoordinator()
        await hub.claim("one", "1", [A])
        taking = asyncio.ensure_future(hub.take([A]))
        await asyncio.sleep(0.05)
        assert not taking.done()
        await hub.put([A], answers("is a"))
        known, found, _ = await asyncio.wait_for(taking, 60)
        assert (known, texts(found)) == ([0], ["is a"])

    asyncio.run(play())


def test_what_is_given_up_or_whose_feeder_died_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        hub = DedupCoordinator()
        await hub.claim("one", "1", [A, B])
        taking = asyncio.ensure_future(hub.take([A]))
        await asyncio.sleep(0.05)
        await hub.release([A])
        known, _, lost = await asyncio.wait_for(taking, 60)
        assert (known, lost) == ([], [0])
        assert await hub.claim("two", "1", [A, B]) == [True, False]
        monkeypatch.setattr(coordinator, "_DEAD_SECONDS", 0.0)
        assert (await hub.take([B]))[2] == [0]
        assert await hub.claim("two", "1", [B]) == [True]

    asyncio.run(play())


def test_oldest_answers_are_forgotten_when_there_are_too_many() -> None:
    async def play() -> None:
        hub = DedupCoordinator(most_bytes=3000)
        await hub.claim("one", "1", [A, B, C])
        for key, text in ((A, "a" * 1000), (B, "b" * 1000), (C, "c")):
            await hub.put([key], answers(text))
        known, _, lost = await hub.take([A, B, C])
        assert (known, lost) == ([1, 2], [0])
        assert await hub.claim("two", "1", [A, B]) == [True, False]

    asyncio.run(play())
