"""Operations of a model, and what cards do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.sizing.cards import CARDS, card_of
from airflow_provider_raydatallm.processor.sizing.model_work import ModelWork, read_model_work

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 640, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3,
    "vocab_size": 512, "max_position_embeddings": 128, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTURE = LLAMA | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip


def work_of(folder: Path, config: dict[str, Any], **engine: Any) -> ModelWork | None:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_work(str(folder), engine)


def test_eight_billion_parameters_take_sixteen_billion_operations_a_token(tmp_path: Path) -> None:
    config = LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32, "vocab_size": 128_256,
    }  # fmt: skip
    work = work_of(tmp_path, config)
    assert work is not None
    assert work.operations(1, 0, 0) == pytest.approx(13.96e9, rel=0.001)
    assert work.operations(1, 1, 0) == pytest.approx(15.01e9, rel=0.001)


@pytest.mark.parametrize(
    ("changes", "engine", "precision"),
    [
        ({}, {}, "half"),
        ({}, {"quantization": "fp8"}, "fp8"),
        ({"quantization_config": {"quant_method": "fp8"}}, {}, "fp8"),
        ({"quantization_config": {"quant_method": "awq"}}, {}, "half"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, {}, None),
        ({"torch_dtype": "float32"}, {}, None),
        ({}, {"dtype": "float32"}, None),
        ({"model_type": "opt"}, {}, None),
        ({"text_config": LLAMA, "model_type": "llava"}, {}, None),
        ({"model_type": "qwen3_moe", "num_experts": 8, "mlp_only_layers": [1]}, {}, None),
        ({"hidden_size": None}, {}, None),
    ],
)
def test_what_is_not_known_is_not_guessed(
    tmp_path: Path, changes: dict[str, Any], engine: dict[str, Any], precision: str | None
) -> None:
    work = work_of(tmp_path, LLAMA | changes, **engine)
    assert (work and work.precision) == precision


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 HBM3"), ("NVIDIA H100 PCIe", "H100 PCIe"), ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4"), ("NVIDIA A100 80GB PCIe", "A100 PCIe"), ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2"), ("NVIDIA L4", "L4"), ("NVIDIA A10G", "A10G"),
    ],
)  # fmt: skip
def test_cards_are_known_by_the_names_that_nvml_has(name: str, card: str) -> None:
    assert card_of(name) is CARDS[card]


@pytest.mark.parametrize(
    "name", ["NVIDIA H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "AMD Instinct MI300X", ""]
)
def test_card_that_is_not_listed_is_unknown(name: str) -> None:
    assert card_of(name) is None


def test_card_without_fp8_multiplies_in_sixteen_bits() -> None:
    work = ModelWork(1, 1, 1, "fp8")
    assert work.peak(CARDS["A100-SXM4"]) == CARDS["A100-SXM4"].half
    assert work.peak(CARDS["H200"]) == CARDS["H200"].fp8
