from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.image_models import check_image_model
from tests.support.llama import LLAMA_8B
from tests.support.slice_jobs import slice_job


def check(folder: Path, config: object, column: str | None = "photo") -> None:
    (folder / "config.json").write_text(json.dumps(config))
    check_image_model(slice_job(model_source=str(folder), images__column=column))


@pytest.mark.parametrize("config", [
    {"vision_config": {}, "text_config": LLAMA_8B}, {**LLAMA_8B, "image_token_id": 7},
    {**LLAMA_8B, "img_processor": {}}, {**LLAMA_8B, "visual": {}}, ["not an object"],
])  # fmt: skip
def test_model_that_sees_is_accepted(tmp_path: Path, config: object) -> None:
    check(tmp_path, config)


def test_model_that_does_not_is_refused_before_its_engine_starts(tmp_path: Path) -> None:
    with pytest.raises(SliceError, match=r"takes none: its config\.json has no vision part") as refused:
        check(tmp_path, LLAMA_8B)
    assert refused.value.kind == "input"
    check(tmp_path, LLAMA_8B, column=None)


def test_model_of_a_hub_is_left_to_vllm() -> None:
    check_image_model(slice_job(model_source="someone/not-here", images__column="photo"))
