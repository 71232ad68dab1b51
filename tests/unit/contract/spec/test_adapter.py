"""LoRA adapters in a spec: what is refused at once, and what answers depend on."""

from __future__ import annotations

import re
from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.groups import flatten
from tests.support.slice_jobs import slice_job

BY_ROW = {"adapter_paths": {"a": "/a", "b": "s3://m/b"}, "adapter_column": "tenant"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adapter_path": "org/adapter"}, "give an address such as 's3://bucket/adapter'"),
        ({"adapter_path": "s3://user:sesame@bucket/a"}, "has a user name or a password"),
        ({**BY_ROW, "adapter_paths": {"x": "a"}}, "adapter 'x': not a folder"),
        ({**BY_ROW, "adapter_paths": {"": "/a"}}, "an adapter has the name ''"),
        ({**BY_ROW, "adapter_path": "/a"}, "adapter.path and adapter.paths exclude each other"),
        ({"adapter_paths": {"a": "/a"}}, "adapter.paths and adapter.column need each other"),
        ({"adapter_column": "tenant"}, "adapter.paths and adapter.column need each other"),
        ({"adapter_path": "/a", "adapter_on_null": "base"}, "adapter.on_null is for adapters that rows name"),
        ({"adapter_base_model": "m/m"}, "adapter.base_model needs adapter.path"),
        ({"adapter_path": "/a", "engine": "ray_data_llm"}, "adapters are for engine 'vllm'"),
        ({"adapter_path": "/a", "processor_kwargs": {"x": 1}}, "this slice's is 'ray_data_llm'"),
        ({"adapter_path": "/a", "engine": "my.engine:Mine"}, "this slice's is 'my.engine:Mine'"),
        ({"adapter_path": "/a", "engine_scope": "shared"}, "an engine of the slice's own"),
        ({"adapter_path": "/a", "engine_kwargs": {"enable_lora": "false"}}, "adapter needs it"),
        ({"adapter_path": "/a", "task": "embed"}, "adapter.path"),
    ],
)  # fmt: skip
def test_what_adapters_cannot_do_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=re.escape(message)) as e:
        slice_job(**fields)
    assert "sesame" not in str(e.value)


def test_fingerprint_has_the_adapters_as_they_are_written() -> None:
    jobs = [
        slice_job(), slice_job(adapter_path="/a"), slice_job(adapter_path="/b"), slice_job(**BY_ROW),
        slice_job(**BY_ROW, adapter_on_null="base"), slice_job(**{**BY_ROW, "adapter_column": "other"}),
        slice_job(**{**BY_ROW, "adapter_paths": {"a": "/a"}}),
    ]  # fmt: skip
    assert len({fingerprint(job) for job in jobs}) == len(jobs)
    same = slice_job(adapter_path="/a", adapter_base_model="m/m", engine_kwargs={"max_loras": 2})
    assert fingerprint(same) == fingerprint(jobs[1])


def test_folder_of_one_adapter_is_the_short_form_of_its_group() -> None:
    assert flatten({"adapter": "s3://m/a"}) == flatten({"adapter": {"path": "s3://m/a"}})
    with pytest.raises(ValueError, match="or the folder of one"):
        flatten({"adapter": 5})
