"""An endpoint in place of an engine: what is refused at once, and what answers depend on."""

from __future__ import annotations

import re
from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.log.secret_shapes import is_secret_name
from airflow_provider_raydatallm.contract.spec.endpoint import KEY_VARIABLE
from tests.support.slice_jobs import slice_job

HTTP = {"engine": "http", "endpoint_url": "https://h/v1"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"endpoint_url": None}, "needs engine.url: the base address"),
        ({"endpoint_url": "h/v1"}, "give the base address"),
        ({"endpoint_url": "ftp://h/v1"}, "give the base address"),
        ({"endpoint_url": "https://h/v1/chat/completions"}, "without '/chat/completions'"),
        ({"endpoint_url": "https://h/v1/embeddings/"}, "without '/embeddings'"),
        ({"endpoint_url": "https://u:sesame@h/v1"}, "the address has a user"),
        ({"endpoint_url": "https://h/v1?key=sesame"}, "may hold a secret"),
        ({"endpoint_url": "http://h/v1"}, "'h' is another machine"),
        ({"requests_in_flight": 0}, "greater than or equal to 1"),
        ({"requests_per_minute": 0}, "greater than 0"),
        ({"token_budget": -1}, "greater than or equal to 1"),
        ({"request_timeout": "soon"}, "'soon' is not a duration"),
        ({"engine_kwargs": {"max_model_len": 5}}, "engine.kwargs is {'max_model_len': 5}"),
        ({"concurrency": 2}, "engine.workers is 2, and an endpoint (engine.kind 'http') cannot follow it"),
        ({"accelerator_type": "L4"}, "engine.accelerator is 'L4'"),
        ({"regex": "a"}, "vLLM's: structured_outputs"),
        ({"grammar": "a"}, "vLLM's: structured_outputs"),
        ({"batch_size": 8}, "engine.batch_size is 8"),
        ({"engine_scope": "shared"}, "this slice's is 'http'"),
        ({"token_budget": 9, "repair": 1, "choices": ("a", "b")}, "counted anew for each attempt"),
        ({"task": "classify"}, "is for engine 'vllm', and this slice's is 'http'"),
        ({"engine": "vllm"}, "engine.url is for engine.kind 'http', and this slice's engine is 'vllm'"),
        ({"engine": "auto", "endpoint_url": None, "token_budget": 5}, "engine.token_budget is for"),
    ],
)  # fmt: skip
def test_what_an_endpoint_cannot_do_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=re.escape(message)) as e:
        slice_job(**{**HTTP, **fields})
    assert "sesame" not in str(e.value)


def test_templates_render_texts() -> None:
    job = slice_job(
        **HTTP, requests_per_minute="3000", request_timeout="2m", token_budget="5", answer_cache="/a"
    )
    assert (job.requests_per_minute, job.request_timeout, job.token_budget) == (3000, 120, 5)


@pytest.mark.parametrize(
    ("url", "is_local"),
    [("http://localhost:8000/v1", True), ("http://127.0.0.2/v1", True), ("http://[::1]:8/v1/", True),
     ("https://127.0.0.1.example.com/v1", False)],
)  # fmt: skip
def test_plain_http_is_for_endpoints_on_the_node_itself(url: str, is_local: bool) -> None:
    job = slice_job(engine="http", endpoint_url=url)
    assert (job.is_local_endpoint, job.endpoint_url) == (is_local, url.rstrip("/"))
    assert slice_job(engine="http", endpoint_url="http://h/v1", allow_plain_http=True).endpoint_host == "h"


def test_fingerprint_knows_an_endpoint_by_its_model() -> None:
    base = fingerprint(slice_job(**HTTP))
    for same in (
        {"endpoint_url": "https://other:8443/v1"}, {"requests_in_flight": 7}, {"requests_per_minute": 7},
        {"tokens_per_minute": 7}, {"token_budget": 7}, {"request_timeout": 7}, {"allow_plain_http": True},
    ):  # fmt: skip
        assert fingerprint(slice_job(**{**HTTP, **same})) == base, same
    assert fingerprint(slice_job(**HTTP, sampling_params={"temperature": 0})) != base
    assert fingerprint(slice_job(**{**HTTP, "model_source": "m2"})) != base
    assert fingerprint(slice_job()) != base


def test_key_is_redacted_by_its_variables_name() -> None:
    assert is_secret_name(KEY_VARIABLE)
