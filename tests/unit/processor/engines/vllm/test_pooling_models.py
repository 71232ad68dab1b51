"""What a model's files say and vLLM would not do is refused before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.pooling_models import check_pooling_model
from tests.support.in_process import job_of

MODULES = [
    {"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in ("Transformer", "Pooling")
]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "word_embedding_dimension": 8}


def check(folder: Path, files: dict[str, Any], **job: Any) -> None:
    for name, content in {
        "config.json": {},
        "modules.json": MODULES,
        "Pooling/config.json": MEAN,
        **files,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    arguments = {"task": "embed", "engine": "vllm", "prompt": "{a}", "model_source": str(folder), **job}
    check_pooling_model(job_of(input_path="/i", output_path="/o", **arguments))


PROMPTS = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
DENSER = [*MODULES, {"type": "sentence_transformers.models.LSTM", "path": "x"}]
UNIT = [*MODULES, {"type": "sentence_transformers.models.Normalize", "path": "x"}]


@pytest.mark.parametrize(
    ("files", "job", "says"),
    [
        ({"Pooling/config.json": {**MEAN, "pooling_mode_max_tokens": True}}, {}, "and max_tokens"),
        ({"Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}}, {}, "weightedmean_tokens"),
        ({"modules.json": DENSER}, {}, "a module 'LSTM', which vLLM leaves out"),
        ({"modules.json": UNIT}, {"embedding__normalize": False}, "Leave embedding.normalize out"),
        ({"config_sentence_transformers.json": PROMPTS}, {}, "begin with 'query: '"),
        ({}, {"embedding__dimensions": 4}, "does not say that"),
        ({"config.json": {"is_matryoshka": True, "hidden_size": 3}}, {"embedding__dimensions": 4}, "have 3"),
        ({"config.json": {"matryoshka_dimensions": [2]}}, {"embedding__dimensions": 4}, "cut to"),
    ],
)  # fmt: skip
def test_mismatch_is_refused(tmp_path: Path, files: dict[str, Any], job: dict[str, Any], says: str) -> None:
    with pytest.raises(SliceError, match=says):
        check(tmp_path, files, **job)


@pytest.mark.parametrize(
    ("files", "job"),
    [
        ({}, {}),
        ({"modules.json": UNIT}, {}),
        ({"config_sentence_transformers.json": PROMPTS}, {"prompt": "query: {a}"}),
        ({"config.json": {"is_matryoshka": True}}, {"embedding__dimensions": 4}),
        ({}, {"embedding__dimensions": 4, "engine__kwargs": {"hf_overrides": {"is_matryoshka": True}}}),
    ],
)
def test_what_vllm_does_as_the_model_says_passes(
    tmp_path: Path, files: dict[str, Any], job: dict[str, Any]
) -> None:
    check(tmp_path, files, **job)
