from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import answer_cache_key, fingerprint
from airflow_provider_raydatallm.contract.spec.leaves import expand
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from tests.support.slice_jobs import refusal, slice_job

IMAGES = {"images__column": "photo"}
HTTP = {"engine": "http", "engine__url": "https://h/v1"}


def test_images_are_a_column_s_name_or_a_group() -> None:
    assert expand("images", "photo") == {"column": "photo"}
    group = {
        "column": "photo",
        "max_pixels": "500000",
        "sources": ["https://cdn.example.com"],
        "timeout": "1m",
    }
    images = slice_job(images=group).task_as(Generate).images
    assert (images.column, images.max_pixels, images.timeout) == ("photo", 500_000, 60)
    assert images.sources == ("https://cdn.example.com",)
    with pytest.raises(ValueError, match=r"images is 3: give a dict with any of column, .*, or the name"):
        expand("images", 3)


@pytest.mark.parametrize(("given", "says"), [
    ({"images__max_pixels": 10_000}, r"images\.max_pixels needs images\.column"),
    ({"images__sources": ["https://x.com"]}, r"images\.sources needs images\.column"),
    ({"images__sources": ["https://x.com"], "prompt": None, "messages": "t"}, r"needs images\.column"),
    ({"images__sources": ["https://x.com"], **HTTP}, r"images\.sources needs images\.column"),
    ({"images__timeout": 3, "images__sources": ["https://x.com"], **HTTP}, r"timeout needs images\.column"),
    ({**IMAGES, "images__sources": ["data:"]}, "'data:', which is for messages"),
    ({**IMAGES, "images__max_pixels": 10}, "greater than or equal to 784"),
    ({**IMAGES, "images__sources": ["photos"]}, "'photos' is not a source"),
    ({**IMAGES, "images__timeout": 0}, "greater than 0"),
    ({**IMAGES, "task": "embed"}, "images is for task='generate', and task is 'embed'"),
    ({**IMAGES, "engine": "ray_data_llm"}, "images is for engine 'vllm', and this slice's is 'ray_data_llm'"),
    ({**IMAGES, "engine": "http", "engine__url": "https://h/v1"}, "images is for engine 'vllm'"),
    ({**IMAGES, "engine__kwargs": {"max_model_len": "auto"}}, "'auto' counts tokens, and those of images"),
    ({**IMAGES, "engine__kwargs": {"max_model_len": 500}, "quality__on_too_long": "truncate"}, "of images"),
])  # fmt: skip
def test_arguments_that_do_not_go_with_images(given: dict[str, Any], says: str) -> None:
    assert re.search(says, refusal(**given))


@pytest.mark.parametrize("given", [
    {}, {"choices": ["a", "b"], "labels__confidence": True}, {"output_schema": {"type": "object"}},
    {"engine__scope": "shared"}, {"prompt": None, "preprocess": "m:f"},
])  # fmt: skip
def test_images_stand_beside_any_prompt_and_answer(given: dict[str, Any]) -> None:
    assert slice_job(**IMAGES, **given).engine.kind == "vllm"


@pytest.mark.parametrize("engine", [HTTP, {"engine": "ray_data_llm"}, {"engine": "my:Engine"}])
@pytest.mark.parametrize("request_of", [{"messages": "talk"}, {"preprocess": "m:f"}])
def test_sources_alone_are_for_images_in_messages(engine: dict[str, str], request_of: dict[str, str]) -> None:
    sources = ["https://x.com", "data:"]
    job = slice_job(images__sources=sources, prompt=None, **engine, **request_of)
    assert job.task_as(Generate).images.sources == tuple(sources)
    assert job.task.media is None


def test_fingerprint_covers_what_decides_what_a_model_sees() -> None:
    base = fingerprint(slice_job(**IMAGES))
    assert base != fingerprint(slice_job())
    for other in ({"images__column": "scan"}, {**IMAGES, "images__max_pixels": 5000}):
        assert fingerprint(slice_job(**other)) != base
    limits = {"images__sources": ["https://x.com"], "images__timeout": 3, "images__max_bytes": 3000}
    assert fingerprint(slice_job(**IMAGES, **limits)) == base


def test_cache_is_shared_by_jobs_that_see_images_alike() -> None:
    def key(job: SliceJob) -> str:
        return answer_cache_key(job, job.engine.arguments, ())

    base = key(slice_job(**IMAGES))
    assert key(slice_job(images__column="scan")) == base  # the request names them by their content
    assert key(slice_job(**IMAGES, images__max_pixels=5000)) != base
