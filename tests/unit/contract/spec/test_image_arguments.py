from __future__ import annotations

from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key, fingerprint
from airflow_provider_raydatallm.contract.groups import flatten
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.slice_jobs import slice_job

IMAGES = {"image_column": "photo"}
HTTP = {"engine": "http", "endpoint_url": "https://h/v1"}


def test_images_are_a_column_s_name_or_a_group() -> None:
    assert flatten({"images": "photo"}) == IMAGES
    group = {
        "column": "photo",
        "max_pixels": "500000",
        "sources": ["https://cdn.example.com"],
        "timeout": "1m",
    }
    job = slice_job(**flatten({"images": group}))
    assert (job.image_column, job.image_max_pixels, job.image_timeout) == ("photo", 500_000, 60)
    assert job.image_sources == ("https://cdn.example.com",)
    with pytest.raises(
        ValueError, match=r"images is 3: give a dict with any of column, .*, or the name of a col"
    ):
        flatten({"images": 3})


@pytest.mark.parametrize(("given", "says"), [
    ({"image_max_pixels": 10_000}, r"images\.max_pixels needs images\.column"),
    ({"image_sources": ["https://x.com"]}, r"images\.sources needs images\.column"),
    ({"image_sources": ["https://x.com"], "prompt": None, "messages": "t"}, r"sources needs images\.column"),
    ({"image_sources": ["https://x.com"], **HTTP}, r"images\.sources needs images\.column"),
    ({"image_timeout": 3, "image_sources": ["https://x.com"], **HTTP}, r"timeout needs images\.column"),
    ({**IMAGES, "image_sources": ["data:"]}, "'data:', which is for messages"),
    ({**IMAGES, "image_max_pixels": 10}, "greater than or equal to 784"),
    ({**IMAGES, "image_sources": ["photos"]}, "'photos' is not a source"),
    ({**IMAGES, "image_timeout": 0}, "greater than 0"),
    ({**IMAGES, "task": "embed"}, r"images\.column is for task='generate', and task is 'embed'"),
    ({**IMAGES, "engine": "ray_data_llm"}, "images is for engine 'vllm', and this slice's is 'ray_data_llm'"),
    ({**IMAGES, "engine": "http", "endpoint_url": "https://h/v1"}, "images is for engine 'vllm'"),
    ({**IMAGES, "engine_kwargs": {"max_model_len": "auto"}}, "'auto' counts tokens, and those of images are"),
    ({**IMAGES, "engine_kwargs": {"max_model_len": 500}, "on_too_long": "truncate"}, "of images are not"),
])  # fmt: skip
def test_arguments_that_do_not_go_with_images(given: dict[str, Any], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=says):
        slice_job(**given)


@pytest.mark.parametrize("given", [
    {}, {"choices": ["a", "b"], "label_confidence": True}, {"output_schema": {"type": "object"}},
    {"engine_scope": "shared"}, {"prompt": None, "preprocess": "m:f"},
])  # fmt: skip
def test_images_stand_beside_any_prompt_and_answer(given: dict[str, Any]) -> None:
    assert slice_job(**IMAGES, **given).resolved_engine == "vllm"


@pytest.mark.parametrize("engine", [HTTP, {"engine": "ray_data_llm"}, {"engine": "my:Engine"}])
@pytest.mark.parametrize("request_of", [{"messages": "talk"}, {"preprocess": "m:f"}])
def test_sources_alone_are_for_images_in_messages(engine: dict[str, str], request_of: dict[str, str]) -> None:
    sources = ["https://x.com", "data:"]
    job = slice_job(image_sources=sources, prompt=None, **engine, **request_of)
    assert job.image_sources == tuple(sources)
    assert job.media is None


def test_fingerprint_covers_what_decides_what_a_model_sees() -> None:
    base = fingerprint(slice_job(**IMAGES))
    assert base != fingerprint(slice_job())
    for other in ({"image_column": "scan"}, {**IMAGES, "image_max_pixels": 5000}):
        assert fingerprint(slice_job(**other)) != base
    limits = {"image_sources": ["https://x.com"], "image_timeout": 3, "image_max_bytes": 3000}
    assert fingerprint(slice_job(**IMAGES, **limits)) == base


def test_cache_is_shared_by_jobs_that_see_images_alike() -> None:
    def key(job: SliceJob) -> str:
        return answer_cache_key(job, job.engine_kwargs, ())

    base = key(slice_job(**IMAGES))
    assert key(slice_job(image_column="scan")) == base  # the request names them by their content
    assert key(slice_job(**IMAGES, image_max_pixels=5000)) != base
    assert key(slice_job()) != base
