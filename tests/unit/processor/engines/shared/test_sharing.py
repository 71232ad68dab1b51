"""Which slices can share an engine."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from tests.support.in_process import job_of


@pytest.mark.parametrize(("options", "why"), [
    ({"engine": "ray_data_llm"}, "engine.scope is for engine.kind='vllm', .* 'ray_data_llm'"),
    ({"engine": "mine:Engine"}, "engine.scope is for engine.kind='vllm', .* a class of your own"),
    ({"model_source": "s3://models/m"}, "engine.scope is for engine.kind='vllm', .* 'ray_data_llm'"),
    ({"engine__kwargs": {"max_model_len": "auto"}}, "engine.scope='shared' .*: max_model_len='auto' depends"),
    (
        {"engine__kwargs": {"max_model_len": 64}, "quality__on_too_long": "raise_limit"},
        "engine.scope='shared' .*: quality.on_too_long='raise_limit' starts engines",
    ),
])  # fmt: skip
def test_slice_that_needs_its_own_engine_cannot_share_one(options: dict[str, Any], why: str) -> None:
    own = {"input_path": "in", "output_path": "out", "model_source": "m", "engine": "auto", **options}
    assert not job_of(**own).can_share_engine
    with pytest.raises(ValidationError) as refused:
        job_of(**own, engine__scope="shared")
    assert re.search(why, describe_problems(refused.value))


def test_engine_scope_does_not_change_the_fingerprint() -> None:
    own, shared = (
        job_of(input_path="in", output_path="out", engine="auto", model_source="m", engine__scope=scope)
        for scope in ("slice", "shared")
    )
    assert fingerprint(own) == fingerprint(shared)
