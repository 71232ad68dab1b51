"""Which rows get one answer, drawn once: identical ones of a slice, and those of other slices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import is_deterministic
from airflow_provider_raydatallm.processor.engines.http.engine import HttpEngine
from airflow_provider_raydatallm.processor.engines.load_engine import load_engine
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from tests.support.answer_cache import new_answers
from tests.support.dedup_block import answer_block
from tests.support.effects.bench import feeder_setup


def shared_draws(job: SliceJob, requests: Sequence[str]) -> list[int]:
    """Returns for each request, of a slice and then of another that asks the same, which draw answers it. One
    that is not random gets the same answer whoever is asked."""
    draws: count[int] = count()
    answers = [answer for _ in range(2) for answer in _answer(job, requests, draws)]
    order = list(dict.fromkeys(answers))
    return [order.index(answer) for answer in answers]


def _answer(job: SliceJob, requests: Sequence[str], draws: count[int]) -> list[str]:
    engine = load_engine(job)(job, len(requests))
    dedup = feeder_setup(engine).dedup if isinstance(engine, VllmEngine | HttpEngine) else None
    if dedup is None:
        return [_draw(request, draws) for request in requests]
    client: DedupClient = dedup()
    answers: dict[int, Any] = {}

    def infer(rows: Sequence[int], keys: Sequence[bytes | None]) -> list[int]:
        answers.update({row: _draw(requests[row], draws) for row in rows})
        own = [(key, answers[row]) for row, key in zip(rows, keys, strict=True) if key is not None]
        client.add_answers([key for key, _ in own], new_answers(*(answer for _, answer in own)))
        return []

    def copy(rows: Sequence[int], copied: pa.Table) -> None:
        answers.update(zip(rows, copied.column("text").to_pylist(), strict=True))

    answer_block(client, requests, infer, copy)
    for coordinator in client._coordinators:
        coordinator.call("close")()  # what slices share is stored
    return [answers[row] for row in range(len(requests))]


def _draw(request: str, draws: count[int]) -> str:
    return request if is_deterministic(request) else f"{request} {next(draws)}"
