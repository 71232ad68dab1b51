"""LoRA adapters in a spec: what is refused at once, and what answers depend on."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec.leaves import expand
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from tests.support.slice_jobs import slice_job

BY_ROW = {"adapter__paths": {"a": "/a", "b": "s3://m/b"}, "adapter__column": "tenant"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adapter__path": "org/adapter"}, "give an address such as 's3://bucket/adapter'"),
        ({"adapter__path": "s3://user:sesame@bucket/a"}, "has a user name or a password"),
        ({**BY_ROW, "adapter__paths": {"x": "a"}}, "adapter 'x': not a folder"),
        ({**BY_ROW, "adapter__paths": {"": "/a"}}, "an adapter has the name ''"),
        ({**BY_ROW, "adapter__path": "/a"}, "adapter.path and adapter.paths exclude each other"),
        ({"adapter__paths": {"a": "/a"}}, "adapter.paths and adapter.column need each other"),
        ({"adapter__column": "tenant"}, "adapter.paths and adapter.column need each other"),
        ({"adapter__path": "/a", "adapter__on_null": "base"}, "adapter.on_null is for adapters that rows"),
        ({"adapter__base_model": "m/m"}, "adapter.base_model needs adapter.path"),
        ({"adapter__path": "/a", "engine": "ray_data_llm"}, "adapter is for engine 'vllm', and"),
        ({"adapter__path": "/a", "engine__processor": {"x": 1}}, "this slice's is 'ray_data_llm'"),
        ({"adapter__path": "/a", "engine": "my.engine:Mine"}, "this slice's is 'my.engine:Mine'"),
        ({**BY_ROW, "engine": "http", "engine__url": "https://h/v1"}, "this slice's is 'http'"),
        ({"adapter__path": "/a", "engine__scope": "shared"}, "an engine of the slice's own"),
        ({"adapter__path": "/a", "engine__kwargs": {"enable_lora": "false"}}, "adapter needs it"),
        ({"adapter__path": "/a", "task": "embed"}, "adapter is for task='generate', and task is 'embed'"),
    ],
)  # fmt: skip
def test_what_adapters_cannot_do_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError) as e:
        slice_job(**fields)
    says = describe_problems(e.value)
    assert message in says
    assert "sesame" not in f"{says} {e.value}"


def test_fingerprint_has_the_adapters_as_they_are_written() -> None:
    jobs = [
        slice_job(), slice_job(adapter__path="/a"), slice_job(adapter__path="/b"), slice_job(**BY_ROW),
        slice_job(**BY_ROW, adapter__on_null="base"), slice_job(**{**BY_ROW, "adapter__column": "other"}),
        slice_job(**{**BY_ROW, "adapter__paths": {"a": "/a"}}),
    ]  # fmt: skip
    assert len({fingerprint(job) for job in jobs}) == len(jobs)
    same = slice_job(adapter__path="/a", adapter__base_model="m/m", engine__kwargs={"max_loras": 2})
    assert fingerprint(same) == fingerprint(jobs[1])


def test_folder_of_one_adapter_is_the_short_form_of_its_group() -> None:
    assert expand("adapter", "s3://m/a") == expand("adapter", {"path": "s3://m/a"}) == {"path": "s3://m/a"}
    with pytest.raises(ValueError, match="or the folder of one"):
        expand("adapter", 5)
