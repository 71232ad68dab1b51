from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.spec.parallel import Parallel
from airflow_provider_raydatallm.processor.sizing.model_config import (
    ModelConfig,
    answers_depend_on_limit,
    cache_bytes,
    could_use_fp8,
    cpu_engine_bytes,
    is_quantized_model,
    parse_model_config,
    read_model_config,
    vector_size,
)
from tests.support.llama import LLAMA_8B, LLAMA_70B, MIXTRAL, QWEN3_30B_A3B


@pytest.mark.parametrize(("config", "kwargs", "gigabytes"), [
    (LLAMA_8B, {}, 16.06), (LLAMA_70B, {}, 141.1), (LLAMA_70B, {"quantization": "fp8"}, 70.55),
    ({**LLAMA_70B, "quantization_config": {"quant_method": "awq"}}, {}, 35.28),
    (LLAMA_8B, {"dtype": "float32"}, 32.12), (MIXTRAL, {}, 93.4), (QWEN3_30B_A3B, {}, 61.06),
])  # fmt: skip
def test_weights_are_counted_from_the_configuration(
    config: dict[str, Any], kwargs: dict[str, Any], gigabytes: float
) -> None:
    weight_bytes = parse_model_config(config, kwargs).weight_bytes
    assert weight_bytes is not None
    assert round(weight_bytes / 1e9, 2) == pytest.approx(gigabytes, rel=1e-3)


def test_cache_bytes_per_token() -> None:
    assert parse_model_config(LLAMA_8B, {}).kv_bytes_per_token == 131_072  # 128 KiB
    assert parse_model_config(LLAMA_8B, {"kv_cache_dtype": "fp8"}).kv_bytes_per_token == 65_536


def test_cache_gets_the_memory_left_by_the_weights() -> None:
    shape = parse_model_config(LLAMA_70B, {})
    alone, four = (cache_bytes(shape, 80e9, Parallel(n), 0.9) for n in (1, 4))
    assert alone is not None
    assert alone < 0
    assert four is not None
    assert round(four / 1e9) == 132
    assert cache_bytes(shape, 80e9, Parallel(2, 2, data=2), 0.9) == four  # each rank has a copy


def test_ranks_share_the_experts_and_nothing_else() -> None:
    shape = parse_model_config(MIXTRAL, {})
    one, four = (shape.rank_weight_bytes(Parallel(data=ranks)) for ranks in (1, 4))
    assert one is not None
    assert four is not None
    assert (one, round((one - four) / 1e9, 2)) == (shape.weight_bytes, pytest.approx(90.19 * 3 / 4, abs=0.01))


def test_quantization_comes_from_arguments_or_model_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert not is_quantized_model(str(tmp_path), {})
    assert is_quantized_model(str(tmp_path), {"quantization": "awq"})
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "quantization_config": {"bits": 4}}))
    assert is_quantized_model(str(tmp_path), {})
    assert not is_quantized_model("meta-llama/Llama-3.1-8B", {})  # not on this machine


def test_engine_on_cpus_holds_its_weights_its_cache_and_its_processes(tmp_path: Path) -> None:
    def holds(**kwargs: Any) -> float:
        return cpu_engine_bytes(str(tmp_path), kwargs, file_bytes=500_000_000, cache_bytes=2e9)

    assert holds() == 4e9  # by the files' size: nothing says what is in them
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert holds(dtype="float32") == pytest.approx(32.12e9 + 3.5e9, rel=0.01)


@pytest.mark.parametrize(("config", "depend"), [
    (LLAMA_8B, False), ({**LLAMA_8B, "rope_scaling": {"rope_type": "yarn", "factor": 4}}, False),
    ({**LLAMA_8B, "rope_scaling": {"type": "longrope"}}, True),
    ({"text_config": {**LLAMA_8B, "rope_parameters": {"rope_type": "longrope"}}}, True),
    ({**LLAMA_8B, "model_type": "llama4"}, True), (None, True),
])  # fmt: skip
def test_models_whose_answers_depend_on_the_limit(
    tmp_path: Path, config: dict[str, Any] | None, depend: bool
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert answers_depend_on_limit(str(tmp_path), {}) == depend


def test_weights_of_other_mixtures_are_unknown() -> None:
    for config in ({**LLAMA_8B, "num_local_experts": 8}, {**QWEN3_30B_A3B, "decoder_sparse_step": 2}):
        shape = parse_model_config(config, {})
        assert (shape.weight_bytes, cache_bytes(shape, 80e9, Parallel(), 0.9)) == (None, None)


def test_configuration_is_read_from_a_folder_or_the_hub_cache(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "model").mkdir()
    assert read_model_config(f"{tmp_path}/model", {}) is None
    (tmp_path / "model" / "config.json").write_text(json.dumps({"text_config": LLAMA_8B}))
    config = read_model_config(f"{tmp_path}/model", {})
    assert isinstance(config, ModelConfig)
    assert config.layers == 32
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert read_model_config("meta-llama/Llama-3.1-8B", {}) is None
    cached = tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(json.dumps(LLAMA_8B))
    assert read_model_config("meta-llama/Llama-3.1-8B", {}) == parse_model_config(LLAMA_8B, {})
    (cached / "config.json").write_text("{}")
    assert read_model_config("meta-llama/Llama-3.1-8B", {}) is None


def test_fp8_is_possible_where_the_weights_are_not_quantized_and_all_gpus_have_it(tmp_path: Path) -> None:
    model = str(tmp_path)
    assert not could_use_fp8(model, {}, ["H100"])  # its files are elsewhere
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert could_use_fp8(model, {}, ["H100", "L4"])
    assert not could_use_fp8(model, {}, ["H100", "A100"])
    assert not could_use_fp8(model, {}, [])
    assert not could_use_fp8(model, {"quantization": "fp8"}, ["H100"])
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "quantization_config": {"x": 1}}))
    assert not could_use_fp8(model, {}, ["H100"])


@pytest.mark.parametrize(
    ("config", "modules", "size"),
    [
        ({"hidden_size": 8}, None, 8),
        ({"dim": 8}, ["Transformer", "Pooling"], 8),
        ({"text_config": {"hidden_size": 8}}, ["Transformer", "Dense"], 5),
        ({}, None, None),
    ],
)
def test_length_of_vectors_is_read_from_the_models_files(
    tmp_path: Path, config: dict[str, Any], modules: list[str] | None, size: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if modules is not None:
        kinds = [{"type": f"sentence_transformers.models.{kind}", "path": "part"} for kind in modules]
        (tmp_path / "modules.json").write_text(json.dumps(kinds))
        (tmp_path / "part").mkdir()
        (tmp_path / "part" / "config.json").write_text('{"out_features": 5}')
    assert vector_size(str(tmp_path), {}) == size
    assert vector_size("some/model", {}) is None
