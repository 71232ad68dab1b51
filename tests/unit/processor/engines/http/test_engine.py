from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.http import client
from airflow_provider_raydatallm.processor.engines.http.engine import HttpEngine
from tests.support.endpoint import embedding, endpoint, error
from tests.support.in_process import job_of


def engine(url: str, **given: Any) -> HttpEngine:
    cached = {"task": "embed", "sampling_params": {}, "answer_cache": "/cache"}
    return HttpEngine(
        job_of(input_path="/i", output_path="/o", engine="http", endpoint_url=url, **cached | given), 1
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
        assert len(served.requests) == 2
        for known in ({"answer_cache": None}, {"embedding_dimensions": 4}, {"task": "generate"}):
            engine(served.url, **known)._vector_size()
        assert len(served.requests) == 2


def test_endpoint_that_answers_no_vector_ends_the_slice_before_any_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    status = 400

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(status)

    with endpoint(respond) as served:
        for status, kind in ((400, "input"), (401, "input"), (503, "transient")):
            with pytest.raises(SliceError) as caught:
                engine(served.url)._vector_size()
            assert caught.value.kind == kind
