"""An endpoint in place of an engine: what is refused at once, and what answers depend on."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.log.secret_shapes import is_secret_name
from airflow_provider_raydatallm.contract.spec.engines.http import KEY_VARIABLE, Http
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from tests.support.slice_jobs import refusal, slice_job

HTTP = {"engine": "http", "engine__url": "https://h/v1"}


@pytest.mark.parametrize("url", ["https://key:hunter2#x@h/v1", "https://key:hunter2/x@h/v1"])
def test_half_of_a_password_is_not_taken_for_a_port_and_told(url: str) -> None:
    assert "hunter2" not in refusal(**{**HTTP, "engine__url": url})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine__url": None}, "needs engine.url: the base address"),
        ({"engine__url": "h/v1"}, "give the base address"),
        ({"engine__url": "ftp://h/v1"}, "give the base address"),
        ({"engine__url": "https://h/v1/chat/completions"}, "without '/chat/completions'"),
        ({"engine__url": "https://h/v1/embeddings/"}, "without '/embeddings'"),
        ({"engine__url": "https://u:sesame@h/v1"}, "the address has a user"),
        ({"engine__url": "https://h/v1?key=sesame"}, "may hold a secret"),
        ({"engine__url": "http://h/v1"}, "'h' is another machine"),
        ({"engine__in_flight": 0}, "greater than or equal to 1"),
        ({"engine__requests_per_minute": 0}, "greater than 0"),
        ({"engine__token_budget": -1}, "greater than or equal to 1"),
        ({"engine__request_timeout": "soon"}, "'soon' is not a duration"),
        ({"engine__kwargs": {"max_model_len": 5}}, "stand in sampling_params"),
        ({"engine__workers": 2}, "leave it out, and set engine.in_flight: requests at once"),
        ({"engine__max_concurrent_batches": 2}, "and set engine.in_flight"),
        ({"engine__processor": {"x": 1}}, "engine.processor is for engine.kind='ray_data_llm'"),
        ({"engine__accelerator": "L4"}, "engine.accelerator is for"),
        ({"regex": "a"}, "vLLM's: structured_outputs"),
        ({"grammar": "a"}, "vLLM's: structured_outputs"),
        ({"engine__batch_size": 8}, "engine.batch_size is for"),
        ({"quality__on_too_long": "truncate"}, "quality.on_too_long is for engine 'vllm'"),
        ({"engine__scope": "shared"}, "engine.scope is for engine.kind='vllm', and"),
        ({"engine__token_budget": 9, "quality__repair": 1, "choices": ("a", "b")}, "counted anew for each"),
        ({"task": "classify"}, "task='classify' is for engine 'vllm', and this slice's is 'http'"),
        ({"engine": "vllm"}, "engine.url is for engine.kind='http', and this slice's engine is 'vllm'"),
        ({"engine": "auto", "engine__url": None, "engine__token_budget": 5}, "engine.token_budget is for"),
    ],
)  # fmt: skip
def test_what_an_endpoint_cannot_do_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError) as e:
        slice_job(**{**HTTP, **fields})
    says = describe_problems(e.value)
    assert message in says
    assert "sesame" not in f"{says} {e.value}"


def test_templates_render_texts() -> None:
    rendered = {"requests_per_minute": "3000", "request_timeout": "2m", "token_budget": "5", "cache": "/a"}
    engine = slice_job(engine={"kind": "http", "url": "https://h/v1", **rendered}).engine_as(Http)
    assert (engine.requests_per_minute, engine.request_timeout, engine.token_budget) == (3000, 120, 5)


@pytest.mark.parametrize(
    ("url", "is_local"),
    [("http://localhost:8000/v1", True), ("http://127.0.0.2/v1", True), ("http://[::1]:8/v1/", True),
     ("https://127.0.0.1.example.com/v1", False)],
)  # fmt: skip
def test_plain_http_is_for_endpoints_on_the_node_itself(url: str, is_local: bool) -> None:
    engine = slice_job(engine="http", engine__url=url).engine_as(Http)
    assert (engine.is_local, engine.url) == (is_local, url.rstrip("/"))
    allowed = slice_job(engine="http", engine__url="http://h/v1", engine__allow_http=True)
    assert allowed.engine_as(Http).host == "h"


def test_fingerprint_knows_an_endpoint_by_its_model() -> None:
    base = fingerprint(slice_job(**HTTP))
    for same in (
        {"engine__url": "https://other:8443/v1"}, {"engine__in_flight": 7}, {"engine__tokens_per_minute": 7},
        {"engine__requests_per_minute": 7}, {"engine__token_budget": 7}, {"engine__request_timeout": 7},
        {"engine__allow_http": True},
    ):  # fmt: skip
        assert fingerprint(slice_job(**{**HTTP, **same})) == base, same
    assert fingerprint(slice_job(**HTTP, sampling_params={"temperature": 0})) != base
    assert fingerprint(slice_job(**{**HTTP, "model_source": "m2"})) != base
    assert fingerprint(slice_job()) != base


def test_key_is_redacted_by_its_variables_name() -> None:
    assert is_secret_name(KEY_VARIABLE)
