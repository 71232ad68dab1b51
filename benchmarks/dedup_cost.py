"""CPU time per row of finding identical requests, in the coordinators and in the feeders that ask them.

Goal: under 10 microseconds of a coordinator per row. Real actors in a local Ray with 8 logical CPUs; feeders
hold several blocks of 2,048 rows at once, and a stub in place of the engine answers in groups. Its own time
is measured without deduplication, and subtracted; so are imports, by a first pass over a few rows.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.coordinator import DedupCoordinator
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import Shard
from benchmarks.embedded import local_ray
from benchmarks.table import print_rows
from tests.support.dedup_block import answer_block

BLOCK = 2048
BLOCKS = int(os.environ.get("BENCH_DEDUP_BLOCKS", 64))
FEEDERS = 2
#: Blocks that a feeder holds at once.
_HELD = 8
#: Rows in a delivered group, and shards.
CASES = ((512, 1), (16, 1), (512, 4))
GOAL = 10e-6


class Coordinator(DedupCoordinator):
    async def cpu_seconds(self) -> float:
        return time.process_time()


class StubFeeder:
    def run(
        self, blocks: Sequence[Sequence[str]], group_rows: int, coordinators: Sequence[Any]
    ) -> dict[str, float]:
        """Returns the seconds it took, CPU seconds of this process, and rows."""
        client = DedupClient.of_actors(coordinators, always=False) if coordinators else None
        inferred = copied = 0

        def answer(requests: Sequence[str]) -> None:
            def infer(rows: Sequence[int], keys: Sequence[bytes | None]) -> Collection[int]:
                nonlocal inferred
                inferred += len(rows)
                for first in range(0, len(rows), group_rows):
                    group = slice(first, first + group_rows)
                    answers = _answers([f"{row} is a company" for row in rows[group]])
                    if client is not None:
                        client.add_answers([key for key in keys[group] if key is not None], answers)
                return ()

            def copy(rows: Sequence[int], answers: pa.Table) -> None:
                nonlocal copied
                copied += len(rows)
                assert len(rows) == answers.num_rows

            if client is not None:
                answer_block(client, requests, infer, copy)
            else:
                infer(range(len(requests)), [None] * len(requests))

        began, cpu = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(_HELD) as pool:
            list(pool.map(answer, blocks))
        return {
            "seconds": time.monotonic() - began,
            "cpu": time.process_time() - cpu,
            "inferred": inferred,
            "copied": copied,
        }


def _answers(texts: list[str]) -> pa.Table:
    count = len(texts)
    columns = {
        "text": texts,
        "finish_reason": ["stop"] * count,
        "shortened": [False] * count,
        "error_type": pa.nulls(count, pa.string()),
        "error": pa.nulls(count, pa.string()),
        "input_tokens": [90] * count,
        "output_tokens": [8] * count,
    }
    return pa.table(columns)


def run() -> bool:
    table, met = [], True
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder, local_ray(Path(folder)):
        for repeated in (0.0, 0.5):
            for group_rows, shards in CASES:
                figures = _measure(_requests(repeated), group_rows, shards)
                met = met and figures["coordinators"] < GOAL
                table.append(
                    [
                        f"{repeated:.0%}",
                        str(group_rows),
                        str(shards),
                        f"{figures['coordinators'] * 1e6:.1f}",
                        f"{figures['feeders'] * 1e6:.1f}",
                        f"{figures['rows_per_s']:,.0f}",
                        f"{figures['copied']:.1%}",
                    ]
                )
    header = [
        "repeated",
        "group",
        "shards",
        "us a row, coordinators",
        "us a row, feeders",
        "rows/s",
        "copied",
    ]
    print_rows(header, table)
    print(f"goal: under {GOAL * 1e6:.0f} us a row in coordinators: {'met' if met else 'NOT MET'}\n")
    return met


def _requests(repeated: float) -> list[list[str]]:
    """Blocks of requests."""
    rows = BLOCKS * BLOCK
    distinct = int(rows * (1 - repeated))
    rnd = random.Random(7)
    numbers = [*range(distinct), *(rnd.randrange(distinct) for _ in range(rows - distinct))]
    rnd.shuffle(numbers)
    requests = []
    for number in numbers:
        prompt = f"What industry is this company in: Company number {number}" + " and so on" * 20
        request = {
            "messages": [{"role": "user", "content": prompt}],
            "cells": [[[34, 60]]],
            "sampling_params": {"temperature": 0, "max_tokens": 16, "ignore_eos": True},
        }
        requests.append(json.dumps(request))
    return [requests[i : i + BLOCK] for i in range(0, rows, BLOCK)]


def _measure(blocks: list[list[str]], group_rows: int, shards: int) -> dict[str, float]:
    import ray

    options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 10_000}
    actor = ray.remote(Coordinator).options(**options)
    coordinators: list[Any] = [actor.remote(None, Shard(i, shards)) for i in range(shards)]
    feeders: list[Any] = [ray.remote(StubFeeder).options(num_cpus=1).remote() for _ in range(FEEDERS)]
    first_pass = [[[request.replace("Company", "Firm") for request in blocks[0]]] for _ in feeders]
    parts = [ray.put(blocks[i::FEEDERS]) for i in range(FEEDERS)]

    def cpu_of_coordinators() -> float:
        return sum(ray.get([c.cpu_seconds.remote() for c in coordinators]))

    def answer_all(parts: list[Any], asked: list[Any]) -> list[dict[str, float]]:
        runs = [f.run.remote(part, group_rows, asked) for f, part in zip(feeders, parts, strict=True)]
        results: list[dict[str, float]] = ray.get(runs)
        return results

    answer_all(first_pass, coordinators)
    stubs = answer_all(parts, [])
    before = cpu_of_coordinators()
    results = answer_all(parts, coordinators)
    cpu = cpu_of_coordinators() - before
    rows = len(blocks) * BLOCK
    for a in [*feeders, *coordinators]:
        ray.kill(a)
    seconds = max(r["seconds"] for r in results)
    inferred = sum(r["inferred"] for r in results)
    # The stub's own time, for the rows that it answered here.
    stub = sum(r["cpu"] for r in stubs) * inferred / rows
    return {
        "coordinators": cpu / rows,
        "feeders": (sum(r["cpu"] for r in results) - stub) / rows,
        "rows_per_s": rows / seconds,
        "copied": sum(r["copied"] for r in results) / rows,
    }
