from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.client import is_deterministic, request_key
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import ANSWER_COLUMNS, DedupCoordinator
from tests.support.async_tests import async_test

A, B, C = (request_key(c) for c in "abc")


def answers(*texts: str) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [None] * len(texts) for name in ANSWER_COLUMNS}
    return pa.table(columns | {"text": list(texts)})


def texts(answers: pa.Table) -> list[str]:
    return answers.column("text").to_pylist()


def test_only_deterministic_requests_share_answers() -> None:
    def request(**params: Any) -> str:
        return json.dumps({"messages": [], "sampling_params": params})

    assert is_deterministic(request(temperature=0))
    assert is_deterministic(request(temperature=1.0, seed=0))
    assert not is_deterministic(request(temperature=0.1))
    assert not is_deterministic(request(seed=-1))
    assert not is_deterministic(request())  # vLLM's own temperature is 1


@async_test
async def test_request_is_inferred_by_its_first_claimant() -> None:
    dedup = DedupCoordinator()
    assert await dedup.claim("one", "1", [A, B]) == [True, True]
    assert await dedup.claim("two", "1", [B, C]) == [False, True]
    await dedup.add_answers([A, B], answers("is a", "is b"))
    known, copies, lost = await dedup.wait_for_answers([B, A])
    assert (known, texts(copies), lost) == ([0, 1], ["is b", "is a"], [])
    assert await dedup.claim("two", "1", [A]) == [False]


@async_test
async def test_error_is_shared_only_after_a_second_row_failed() -> None:
    failed = answers("", "is b").set_column(
        ANSWER_COLUMNS.index("error"), "error", pa.array(["too long", None])
    )
    dedup = DedupCoordinator()
    assert await dedup.claim("one", "1", [A, B]) == [True, True]
    await dedup.add_answers([A, B], failed)
    known, _, lost = await dedup.wait_for_answers([A, B])
    assert (known, lost) == ([1], [0])
    assert await dedup.claim("two", "1", [A, B]) == [True, False]
    await dedup.add_answers([A], failed.slice(0, 1))
    known, copies, lost = await dedup.wait_for_answers([A])
    assert (known, copies.column("error").to_pylist(), lost) == ([0], ["too long"], [])


@async_test
async def test_repeated_call_gets_the_same_claims() -> None:
    dedup = DedupCoordinator()
    assert await dedup.claim("one", "1", [A]) == [True]
    assert await dedup.claim("one", "1", [A]) == [True]
    assert await dedup.claim("one", "2", [A]) == [False]  # of another thread


@async_test
async def test_copies_wait_for_the_answer() -> None:
    dedup = DedupCoordinator()
    await dedup.claim("one", "1", [A])
    waiting = asyncio.ensure_future(dedup.wait_for_answers([A]))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await dedup.add_answers([A], answers("is a"))
    known, copies, _ = await asyncio.wait_for(waiting, 60)
    assert (known, texts(copies)) == ([0], ["is a"])


@async_test
async def test_request_is_free_again_when_released_or_its_feeder_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dedup = DedupCoordinator()
    await dedup.claim("one", "1", [A, B])
    waiting = asyncio.ensure_future(dedup.wait_for_answers([A]))
    await asyncio.sleep(0.05)
    await dedup.release([A])
    known, _, lost = await asyncio.wait_for(waiting, 60)
    assert (known, lost) == ([], [0])
    assert await dedup.claim("two", "1", [A, B]) == [True, False]
    monkeypatch.setattr(coordinator, "_DEAD_SECONDS", 0.0)
    assert (await dedup.wait_for_answers([B]))[2] == [0]
    assert await dedup.claim("two", "1", [B]) == [True]


@async_test
async def test_oldest_answers_are_evicted_over_the_limit() -> None:
    dedup = DedupCoordinator(max_bytes=3000)
    await dedup.claim("one", "1", [A, B, C])
    for key, text in ((A, "a" * 1000), (B, "b" * 1000), (C, "c")):
        await dedup.add_answers([key], answers(text))
    known, _, lost = await dedup.wait_for_answers([A, B, C])
    assert (known, lost) == ([1, 2], [0])
    assert await dedup.claim("two", "1", [A, B]) == [True, False]
