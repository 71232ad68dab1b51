"""Adapters that cannot work, or that vLLM would run otherwise than they were trained, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.adapters.adapter import WEIGHTS
from airflow_provider_raydatallm.processor.adapters.checks import adapter_problems, read_shapes
from tests.support.adapters import write_adapter

MODEL = {"hidden_size": 8, "num_hidden_layers": 2}
CONFIG = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none",
    "base_model_name_or_path": "org/model",
}  # fmt: skip
LAYER = "base_model.model.model.layers.{}.self_attn.{}.lora_{}.weight"
SHAPES = {
    LAYER.format(1, "q_proj", "A"): [4, 8], LAYER.format(1, "q_proj", "B"): [16, 4],
    LAYER.format(0, "o_proj", "A"): [4, 16], LAYER.format(0, "o_proj", "B"): [8, 4],
    "base_model.model.vision.layers.9.q_proj.lora_A.weight": [4, 99],
}  # fmt: skip


def problems(
    config: Any = (),
    shapes: Any = None,
    model: Any = MODEL,
    source: str = "org/model",
    base: str | None = None,
) -> list[str]:
    config = {**CONFIG, **dict(config)} if not isinstance(config, list) else config
    return list(
        adapter_problems(config, SHAPES | (shapes or {}), model, model_source=source, base_model=base)
    )


@pytest.mark.parametrize(
    "fine",
    [
        {},
        {"model": None},
        {"model": {"text_config": MODEL}},
        {"source": "/models/copy"},
        {"source": "Org/Model"},
        {"source": "org/model-awq", "base": "org/model"},
        {"config": {"base_model_name_or_path": "/scratch/model"}},
        {"config": {"base_model_name_or_path": None}},
        {"config": {"modules_to_save": [], "rank_pattern": {}, "use_rslora": True}},
    ],
)
def test_adapter_that_fits_has_no_problem(fine: dict[str, Any]) -> None:
    assert problems(**fine) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"config": []}, "not that of a LoRA"),
        ({"config": {"peft_type": "PROMPT_TUNING"}}, "not that of a LoRA"),
        ({"config": {"r": 0}}, "lacks r"),
        ({"config": {"r": "4"}}, "lacks r"),
        ({"config": {"r": 513}}, "its rank (r) is 513, and vLLM takes 512 at most"),
        ({"config": {"use_dora": True}}, "DoRA"),
        ({"config": {"bias": "all"}}, "has a bias"),
        ({"config": {"modules_to_save": ["lm_head"]}}, "has modules_to_save"),
        ({"config": {"rank_pattern": {"q_proj": 8}}}, "has rank_pattern"),
        ({"config": {"alpha_pattern": {"q_proj": 8}}}, "has alpha_pattern"),
        ({"source": "org/other"}, "trained on 'org/model', and the model is 'org/other'"),
        ({"base": "org/other"}, "trained on 'org/model', and the model is 'org/other'"),
        ({"config": {"base_model_name_or_path": "/m"}, "base": "org/model"}, "trained on '/m'"),
        ({"model": {**MODEL, "hidden_size": 16}}, "for a hidden size of 8"),
        ({"model": {**MODEL, "num_hidden_layers": 1}}, "changes layer 1"),
        ({"shapes": {LAYER.format(0, "o_proj", "B"): [9, 4]}}, "for a hidden size of 9"),
        ({"shapes": {LAYER.format(0, "q_proj", "A"): [5, 8]}}, "weights are of rank 5"),
    ],
)
def test_what_is_wrong_with_an_adapter_is_named(wrong: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems(**wrong)), problems(**wrong)


def test_weights_that_are_none_of_a_lora_are_refused() -> None:
    shapes = {"model.norm.weight": [8]}
    found = adapter_problems(CONFIG, shapes, MODEL, model_source="org/model", base_model=None)
    assert list(found) == ["its weights are none of a LoRA (lora_A and lora_B)"]


def test_shapes_are_read_from_a_whole_file_only(tmp_path: Path) -> None:
    weights = write_adapter(tmp_path / "a") / WEIGHTS
    assert sorted(map(tuple, read_shapes(weights).values())) == [(4, 384), (128, 4)]
    whole = weights.read_bytes()
    for damaged, message in [
        (whole[:-1], "it is not whole"),
        (whole + b"x", "it is not whole"),
        (b"", "not a safetensors file"),
        (b"\xff" * 100, "not a safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "not a safetensors file"),
    ]:
        weights.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            read_shapes(weights)
