from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from aiohttp import web

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.http import client
from airflow_provider_raydatallm.processor.engines.http.engine import HttpEngine
from airflow_provider_raydatallm.processor.engines.http.limits import RequestSize, TokenBudget, TokenEstimate
from tests.support.endpoint import embedding, endpoint, error
from tests.support.http_feeding import feed
from tests.support.in_process import job_of
from tests.support.key_value_store import replace_store


def engine(url: str, **given: Any) -> HttpEngine:
    cached = {"task": "embed", "sampling_params": {}, "engine__cache": "/cache"}
    return HttpEngine(
        job_of(input_path="/i", output_path="/o", engine="http", engine__url=url, **cached | given), 1
    )


def test_cached_vectors_are_of_the_size_that_the_endpoint_answers_now() -> None:
    """Another model behind the same name has other cached answers."""
    size = 8

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return embedding([0.5] * size)

    with endpoint(respond) as served:
        before = engine(served.url)
        assert before._vector_size() == 8
        size = 16
        now = engine(served.url)
        assert now._vector_size() == 16
        assert before._cache_key(8) != now._cache_key(16)
        assert len(served.requests) == 4
        for known in ({"embedding__dimensions": 4}, {"task": "generate"}):
            engine(served.url, **known)._vector_size()
        assert len(served.requests) == 4


def test_model_in_anothers_place_does_not_decide_the_size_of_all_vectors() -> None:
    """For one request: that which asks for the size, or the first row."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return embedding([0.5] * (16 if number == odd else 8))

    odd = 0
    with endpoint(respond) as served, pytest.raises(SliceError, match="of 16 and of 8") as caught:
        engine(served.url)._vector_size()
    assert caught.value.kind == "transient"
    with endpoint(respond) as served:
        sink, _ = feed(served, ["a", "b"], task="embed", sampling_params={}, vector_size=8)
    assert [len(sink.by_row[row]["numbers"]) for row in (0, 1)] == [8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(("status", "kind"), [(400, "input"), (401, "input"), (503, "transient")])
def test_endpoint_that_answers_no_vector_ends_the_slice_before_any_row(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: str
) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(status)

    with endpoint(respond) as served, pytest.raises(SliceError) as caught:
        engine(served.url)._vector_size()
    assert caught.value.kind == kind


def test_budget_is_of_a_run_whatever_dies_in_it_and_however_often_rows_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = replace_store(monkeypatch)
    http = engine("http://127.0.0.1:9/v1", task="generate", engine__cache=None, engine__token_budget=1000)
    size = RequestSize(200, 100)

    def spend(die: bool) -> None:
        """In a process of its own, which may die while it waits for an answer."""
        feeder = http.start_for_feeders(alone=True)
        spent = pickle.loads(pickle.dumps(feeder.args[1]))
        budget = TokenBudget(1000, TokenEstimate(), spent)

        async def ask() -> None:
            reserved = await budget.reserve(size)
            if not die:
                await budget.settle(reserved, 250, is_guess=False)

        asyncio.run(ask())

    spend(die=True)
    spend(die=False)
    http.stop()  # and the next round
    assert not keys
    spend(die=False)
    with pytest.raises(SliceError, match="has spent 800 tokens"):
        spend(die=False)
