from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import (
    ADDED_COLUMNS,
    ADDED_SCHEMA,
    COPIED_SCHEMA,
    DedupCoordinator,
)
from airflow_provider_raydatallm.processor.engines.dedup.messages import pack, unpack
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import request_key
from tests.support.async_tests import async_test

A, B, C = (request_key(c) for c in "abc")


def answers(*texts: str, errors: list[str | None] | None = None) -> bytes:
    columns: dict[str, list[Any]] = {name: [None] * len(texts) for name in ADDED_COLUMNS}
    columns |= {"text": list(texts), "error": errors or columns["error"]}
    return pack(pa.table(columns), ADDED_SCHEMA)


def texts(answers: bytes) -> list[str]:
    return unpack(answers, COPIED_SCHEMA).column("text").to_pylist()


@async_test
async def test_request_is_inferred_by_its_first_claimant() -> None:
    dedup = DedupCoordinator()
    assert await dedup.claim("one", "1", A + B) == [True, True]
    assert await dedup.claim("two", "2", B + C) == [False, True]
    await dedup.add_answers("3", A + B, answers("is a", "is b"))
    known, copies, lost = await dedup.wait_for_answers(B + A)
    assert (known, texts(copies), lost) == ([0, 1], ["is b", "is a"], [])
    assert await dedup.claim("two", "4", A) == [False]


@async_test
async def test_first_answer_stays_whoever_adds_it() -> None:
    dedup = DedupCoordinator()
    await dedup.claim("one", "1", A)
    await dedup.add_answers("2", A + B, answers("is a", "is b"))  # nobody claimed b
    await dedup.add_answers("3", B + C + A, answers("other b", "is c", "", errors=[None, None, "too late"]))
    assert await dedup.claim("two", "4", A + B + C) == [False] * 3
    known, copies, _ = await dedup.wait_for_answers(A + B + C)
    assert (known, texts(copies)) == ([0, 1, 2], ["is a", "is b", "is c"])


@async_test
async def test_claims_of_feeders_that_are_gone_are_given_up_and_answers_stay() -> None:
    dedup = DedupCoordinator()
    await dedup.claim("one", "1", A + B)
    await dedup.add_answers("2", A, answers("is a"))
    waiting = asyncio.create_task(dedup.wait_for_answers(B))
    await asyncio.sleep(0)
    await dedup.forget_claims()
    assert (await waiting)[2] == [0]
    assert await dedup.claim("two", "3", A + B) == [False, True]


@async_test
async def test_error_is_shared_only_after_a_second_row_failed() -> None:
    dedup = DedupCoordinator()
    failed = answers("", "is b", errors=["too long", None])
    assert await dedup.claim("one", "1", A + B) == [True, True]
    await dedup.add_answers("2", A + B, failed)
    await dedup.add_answers("2", A + B, failed)  # Ray repeats the call: the row failed once
    known, _, lost = await dedup.wait_for_answers(A + B)
    assert (known, lost) == ([1], [0])
    assert await dedup.claim("two", "3", A + B) == [True, False]
    await dedup.add_answers("4", A, answers("", errors=["too long"]))
    known, copies, lost = await dedup.wait_for_answers(A)
    assert (known, lost) == ([0], [])
    assert unpack(copies, COPIED_SCHEMA).column("error").to_pylist() == ["too long"]


@async_test
async def test_repeated_claim_has_the_same_result() -> None:
    dedup = DedupCoordinator()
    assert await dedup.claim("one", "1", A) == [True]
    assert await dedup.claim("one", "2", A + B) == [False, True]  # of another block
    await dedup.release("1", A)
    assert await dedup.claim("one", "2", A + B) == [False, True]  # what is free by now is not claimed
    assert await dedup.claim("two", "3", A + B) == [True, False]


@async_test
async def test_copies_wait_for_the_answers_but_not_for_all_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    dedup = DedupCoordinator()
    await dedup.claim("one", "1", A + B)
    waiting = asyncio.ensure_future(dedup.wait_for_answers(A + B))
    await asyncio.sleep(0.02)
    await dedup.add_answers("2", A, answers("is a"))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await dedup.add_answers("3", B, answers("is b"))
    known, copies, _ = await asyncio.wait_for(waiting, 1)
    assert (known, texts(copies)) == ([0, 1], ["is a", "is b"])
    await dedup.claim("one", "4", C)
    monkeypatch.setattr(coordinator, "_WAIT_SECONDS", 0.05)
    known, copies, lost = await dedup.wait_for_answers(C + B)
    assert (known, texts(copies), lost) == ([1], ["is b"], [])


@async_test
async def test_request_is_free_again_when_released_or_its_feeder_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dedup = DedupCoordinator()
    await dedup.claim("one", "1", A)
    await dedup.claim("one", "2", B)
    waiting = asyncio.ensure_future(dedup.wait_for_answers(A))
    await asyncio.sleep(0.02)
    await dedup.release("2", A)  # not its claim
    assert await dedup.claim("two", "3", A) == [False]
    await dedup.release("1", A)
    known, _, lost = await asyncio.wait_for(waiting, 1)
    assert (known, lost) == ([], [0])
    assert await dedup.claim("two", "4", A + B) == [True, False]
    monkeypatch.setattr(coordinator, "_DEAD_SECONDS", 0.0)
    assert (await dedup.wait_for_answers(B))[2] == [0]
    assert await dedup.claim("two", "5", B) == [True]
    await dedup.add_answers("6", B, answers("is b"))  # of the first: it was only silent
    assert texts((await dedup.wait_for_answers(B))[1]) == ["is b"]


@async_test
async def test_oldest_answers_are_evicted_over_the_limit() -> None:
    dedup = DedupCoordinator(max_bytes=2500)
    await dedup.claim("one", "1", A + B + C)
    for key, text in ((A, "a" * 1000), (B, "b" * 1000), (C, "c")):
        await dedup.add_answers(text, key, answers(text))
    known, copies, lost = await dedup.wait_for_answers(A + B + C)
    assert (known, texts(copies), lost) == ([1, 2], ["b" * 1000, "c"], [0])
    assert await dedup.claim("two", "2", A + B) == [True, False]
