"""Which slices can share an engine."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from tests.support.in_process import job_of


@pytest.mark.parametrize(("options", "why"), [
    ({"engine": "ray_data_llm"}, "it is for engine 'vllm', and this slice's is 'ray_data_llm'"),
    ({"engine": "mine:Engine"}, "this slice's is 'mine:Engine'"),
    ({"model_source": "s3://models/m"}, "this slice's is 'ray_data_llm'"),
    ({"engine_kwargs": {"max_model_len": "auto"}}, "max_model_len='auto' depends on the rows of one slice"),
    (
        {"engine_kwargs": {"max_model_len": 64}, "on_too_long": "raise_limit"},
        "starts engines with limits of the slice's own",
    ),
])  # fmt: skip
def test_slice_that_needs_its_own_engine_cannot_share_one(options: dict[str, Any], why: str) -> None:
    own = {"input_path": "in", "output_path": "out", "model_source": "m", "engine": "auto", **options}
    assert not job_of(**own).can_share_engine
    with pytest.raises(ValueError, match=f"engine.scope='shared' is not possible: .*{why}"):
        job_of(**own, engine_scope="shared")


def test_engine_scope_does_not_change_the_fingerprint() -> None:
    own, shared = (
        job_of(input_path="in", output_path="out", engine="auto", model_source="m", engine_scope=scope)
        for scope in ("slice", "shared")
    )
    assert fingerprint(own) == fingerprint(shared)
