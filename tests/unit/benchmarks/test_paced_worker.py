"""Benchmarks without a GPU stand on these: the pace of one, and lengths that an engine cannot see."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from benchmarks.gpu_pace import Pace, PacedBatching, PacedRow, offline_seconds
from benchmarks.hidden_lengths import hide_lengths, length_of
from benchmarks.paced_worker import PacedWorker


def mixed_rows(count: int) -> list[PacedRow]:
    rnd = random.Random(7)
    prompts = [int(min(2000, max(30, rnd.lognormvariate(5.45, 0.9)))) for _ in range(count)]
    return [PacedRow(prompt, int(min(400, max(8, rnd.lognormvariate(4.4, 0.8))))) for prompt in prompts]


@pytest.mark.parametrize(
    ("rows", "cached", "rows_per_s"),
    [
        pytest.param([PacedRow(81, 16) for _ in range(10_000)], 0.0, 417, id="new_prompts"),
        pytest.param([PacedRow(73, 16) for _ in range(10_000)], 0.92, 985, id="repeating_prompts"),
        pytest.param(mixed_rows(6000), 0.0, 75, id="mixed"),
    ],
)
def test_the_default_pace_is_that_of_the_measured_gpu(
    rows: Sequence[PacedRow], cached: float, rows_per_s: float
) -> None:
    seconds = offline_seconds(rows, Pace(cached=cached))
    assert len(rows) / seconds == pytest.approx(rows_per_s, rel=0.06)


def test_rows_run_one_after_another_where_the_cache_holds_one() -> None:
    step_only = Pace(kv_tokens=100, step_s=1, row_s=0, kv_token_s=0, prompt_token_s=0)
    assert offline_seconds([PacedRow(60, 10) for _ in range(3)], step_only) == 30
    assert offline_seconds([PacedRow(60, 10) for _ in range(3)], replace(step_only, kv_tokens=1000)) == 10


def test_every_row_finishes_once_although_a_full_cache_makes_some_start_again() -> None:
    rows, batching = mixed_rows(300), PacedBatching(Pace(kv_tokens=5000))
    for row in rows:
        batching.add(row)
    finished = []
    while not batching.is_idle:
        finished += batching.end_step()
    assert len(finished) == len(rows)
    assert set(finished) == set(rows)


def test_the_paced_worker_answers_when_the_simulation_does() -> None:
    pace, speed = Pace(row_s=1e-3), 20.0
    worker = PacedWorker({"additional_config": {"pace": asdict(pace), "speed": speed}})
    lengths = [5 + i % 10 for i in range(100)]
    finished: list[int] = []

    async def generate(length: int) -> None:
        params = json.dumps({"max_tokens": 99, "extra_args": {"length": length}})
        answer = await worker._generate_row([1] * 20, params, "")
        finished.append(answer["output_tokens"])

    async def generate_all() -> None:
        await asyncio.gather(*(generate(length) for length in lengths))

    began = time.monotonic()
    asyncio.run(generate_all())
    assert sorted(finished) == sorted(lengths)
    assert (finished[0], finished[-1]) == (min(lengths), max(lengths))
    ideal = offline_seconds([PacedRow(20, length) for length in lengths], pace)
    assert time.monotonic() - began >= ideal / speed


def test_hidden_lengths_reach_the_worker_and_not_max_tokens() -> None:
    rows, sampling = hide_lengths([{"answer_tokens": 20}, {"answer_tokens": 1600}])
    params = [{**sampling, "extra_args": row["hidden"]} for row in rows]
    assert sampling["extra_args"] == "{hidden}"
    assert [p["max_tokens"] for p in params] == [1600, 1600]
    assert [length_of(json.dumps(p)) for p in params] == [20, 1600]
    assert length_of('{"max_tokens": 7}') == 7
