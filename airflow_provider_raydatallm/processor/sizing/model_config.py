"""What a model's files say of its sizes: the GPU memory that it takes, and how long its vectors are."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.spec.parallel import Parallel

logger = logging.getLogger(__name__)

#: Bytes per value.
_BYTES = {"float32": 4.0, "float": 4.0, "float16": 2.0, "half": 2.0, "bfloat16": 2.0, "fp8": 1.0, "auto": 2.0}
#: Bytes per weight by quantization method.
_QUANTIZED = {"fp8": 1.0, "int8": 1.0, "awq": 0.5, "gptq": 0.5, "awq_marlin": 0.5, "gptq_marlin": 0.5}
#: Ray's names of GPUs that multiply in fp8. Others only store it.
_FP8_GPUS = frozenset({"L4", "L40S", "H20", "H100", "H200", "B200", "B300", "RTX-PRO-6000"})
#: Model types whose experts are counted.
_MIXTURES = {"mixtral", "qwen2_moe", "qwen3_moe"}
#: Where models have the size of a token's vector.
_HIDDEN_SIZES = ("hidden_size", "d_model", "dim", "n_embd")
#: Beginnings of model types that vLLM computes by `max_model_len`, and ways to encode positions that it does
#: not: "longrope" has one set of factors for short limits, and one for long ones.
_LIMIT_COUNTS = ("llama4", "nomic")
_LENGTH_FREE = frozenset({"default", "linear", "llama3", "yarn", "dynamic"})
#: Share of vLLM's memory for activations: neither weights nor cache.
_ACTIVATIONS = 0.05
#: Of the processes of an engine on CPUs, with torch and vLLM in each, beside its weights and its cache.
_CPU_PROCESSES = 1.5e9
#: vLLM's default gpu_memory_utilization.
UTILIZATION = 0.9


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's sizes. `parameters` is None when the configuration does not determine it; it includes
    `expert_parameters`, those of all experts."""

    parameters: int | None
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    weight_bytes_each: float = 2.0
    kv_bytes_each: float = 2.0
    expert_parameters: int = 0
    #: How the weights of its folder are quantized; None: not at all.
    quantization: str | None = None

    @property
    def weight_bytes(self) -> float | None:
        """Example: 70 billion parameters take 140 GB in bfloat16, 70 GB in fp8."""
        return None if self.parameters is None else self.parameters * self.weight_bytes_each

    def rank_weight_bytes(self, parallel: Parallel) -> float | None:
        """On the GPUs of a data-parallel rank: all weights but those of experts, which vLLM divides among the
        GPUs of all ranks, with and without expert parallelism (its FusedMoEParallelConfig). Context parallel
        GPUs have copies, too."""
        if self.parameters is None:
            return None
        dense = (self.parameters - self.expert_parameters) * parallel.context
        return (dense + self.expert_parameters / parallel.data) * self.weight_bytes_each

    @property
    def kv_bytes_per_token(self) -> float:
        """A key and a value in each layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes_each


def read_model_config(model_source: str, engine_kwargs: Mapping[str, Any]) -> ModelConfig | None:
    """Reads the configuration of a model in a local folder or the hub cache; None when there is none or it is
    not a plain decoder's."""
    config = load_config(model_source, engine_kwargs)
    try:
        return parse_model_config(config, engine_kwargs) if config is not None else None
    except (ValueError, KeyError, TypeError):
        return None


def vector_size(model_source: str, engine_kwargs: Mapping[str, Any]) -> int | None:
    """Returns how many numbers an embedding model's vectors have; None where its local files do not say."""
    file, config = config_file(model_source), load_config(model_source, engine_kwargs)
    if file is None or config is None:
        return None
    config = config.get("text_config") or config
    size = next((int(config[name]) for name in _HIDDEN_SIZES if config.get(name)), None)
    try:
        for module in json.loads((file.parent / "modules.json").read_text()):
            if str(module["type"]).endswith(".Dense"):
                dense = json.loads((file.parent / module["path"] / "config.json").read_text())
                size = int(dense["out_features"])
    except FileNotFoundError:
        return size  # it is no model of sentence-transformers
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return size


def is_quantized_model(model_source: str, engine_kwargs: Mapping[str, Any]) -> bool:
    """Returns whether the arguments or the model's local files, if any, name a quantization."""
    config = load_config(model_source, engine_kwargs) or {}
    return bool(engine_kwargs.get("quantization") or config.get("quantization_config"))


def cpu_engine_bytes(
    model_source: str, engine_kwargs: Mapping[str, Any], file_bytes: int, cache_bytes: float
) -> int:
    """Returns about what an engine on CPUs holds of its node's memory.

    :param file_bytes: of all the model's files: its weights, where its configuration does not say more.
    """
    config = read_model_config(model_source, engine_kwargs)
    weights = config.weight_bytes if config is not None else None
    return int((file_bytes if weights is None else weights) + cache_bytes + _CPU_PROCESSES)


def answers_depend_on_limit(model_source: str, engine_kwargs: Mapping[str, Any]) -> bool:
    """Returns whether vLLM computes a model otherwise with another `max_model_len`; True where its local
    files do not say."""
    config = load_config(model_source, engine_kwargs)
    if config is None or str(config.get("model_type")).startswith(_LIMIT_COUNTS):
        return True
    config = config.get("text_config") or config
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return not _LENGTH_FREE.issuperset([scaling.get("rope_type") or scaling.get("type") or "default"])


def could_use_fp8(model_source: str, engine_kwargs: Mapping[str, Any], gpu_types: Collection[str]) -> bool:
    """Returns whether vLLM could quantize the model to fp8, on GPUs that compute with it; False where that is
    not known."""
    if load_config(model_source, engine_kwargs) is None or not gpu_types:
        return False
    return _FP8_GPUS.issuperset(gpu_types) and not is_quantized_model(model_source, engine_kwargs)


def load_config(model_source: str, engine_kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    file = config_file(model_source)
    try:
        config = json.loads(file.read_text()) if file is not None else None
    except (OSError, ValueError):
        return None
    overrides = engine_kwargs.get("hf_overrides")
    return config | (overrides if isinstance(overrides, dict) else {}) if isinstance(config, dict) else None


def fetch_config(model_source: str, engine_kwargs: Mapping[str, Any]) -> None:
    """Copies the configuration of a hub's model, without its weights, into the hub cache, if it can."""
    if "/" not in model_source or model_source.startswith(("/", ".", "~")) or "://" in model_source:
        return
    try:
        from huggingface_hub import snapshot_download

        snapshot_download(
            model_source,
            revision=engine_kwargs.get("revision"),
            allow_patterns=["config.json", "modules.json", "*/config.json"],
        )
    except Exception as e:  # the hub raises any type
        logger.info("the configuration of model %r cannot be read from the hub: %s", model_source, e)


def config_file(model_source: str) -> Path | None:
    folder = Path(os.path.expanduser(model_source))
    if folder.is_dir():
        return folder / "config.json"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{os.environ.get('HF_HOME', '~/.cache/huggingface')}/hub")
    snapshots = cache.expanduser() / f"models--{model_source.replace('/', '--')}" / "snapshots"
    return max(snapshots.glob("*/config.json"), key=lambda p: p.stat().st_mtime, default=None)


def parse_model_config(config: Mapping[str, Any], engine_kwargs: Mapping[str, Any]) -> ModelConfig:
    """:raises KeyError: for a configuration that is not a decoder's."""
    config = config.get("text_config") or config
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    dtype = engine_kwargs.get("dtype") or "auto"
    if dtype == "auto":
        dtype = config.get("dtype") or config.get("torch_dtype") or "auto"
    quantization = config.get("quantization_config") or {}
    method = engine_kwargs.get("quantization") or quantization.get("quant_method")
    value_bytes = _BYTES.get(str(dtype), 2.0)
    cache_dtype = str(engine_kwargs.get("kv_cache_dtype") or "auto")
    experts = _expert_parameters(config)
    return ModelConfig(
        parameters=None if experts is None else _parameters(config, heads, kv_heads, head_dim) + experts,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=int(config["max_position_embeddings"]),
        weight_bytes_each=_QUANTIZED.get(str(method), value_bytes) if method else value_bytes,
        kv_bytes_each=1.0 if cache_dtype.startswith("fp8") else value_bytes,
        expert_parameters=experts or 0,
        quantization=quantization.get("quant_method"),
    )


def _expert_parameters(config: Mapping[str, Any]) -> int | None:
    """Counts those of gated experts in every layer, 0 for a dense decoder; None for any other mixture."""
    experts = _experts(config)
    if not experts:
        return 0
    if config.get("model_type") not in _MIXTURES or config.get("mlp_only_layers"):
        return None
    if int(config.get("decoder_sparse_step") or 1) != 1:
        return None
    inner = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    return int(config["num_hidden_layers"]) * experts * 3 * int(config["hidden_size"]) * inner


def _experts(config: Mapping[str, Any]) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _parameters(config: Mapping[str, Any], heads: int, kv_heads: int, head_dim: int) -> int:
    """Counts those of a decoder with gated layers, without its experts."""
    hidden = int(config["hidden_size"])
    tables = 1 if config.get("tie_word_embeddings") else 2
    layer = _multiplied(config, heads, kv_heads, head_dim) + 2 * hidden
    return int(config["num_hidden_layers"]) * layer + tables * int(config["vocab_size"]) * hidden + hidden


def _multiplied(config: Mapping[str, Any], heads: int, kv_heads: int, head_dim: int) -> int:
    """Counts a layer's matrices, without those of its experts."""
    hidden, experts = int(config["hidden_size"]), _experts(config)
    shared = config.get("shared_expert_intermediate_size") or 0
    inner = int(shared if experts else config["intermediate_size"])
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return attention + 3 * hidden * inner + hidden * experts


def layer_parameters(config: Mapping[str, Any]) -> float | None:
    """Counts the parameters of all layers by which a token is multiplied: of a mixture, those of the experts
    that it goes through. None where the configuration does not determine it.

    :raises KeyError: for a configuration that is not a decoder's.
    """
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    all_experts, experts = _expert_parameters(config), _experts(config)
    if all_experts is None:
        return None
    chosen = all_experts * int(config["num_experts_per_tok"]) / experts if experts else 0
    layers = int(config["num_hidden_layers"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return layers * _multiplied(config, heads, kv_heads, head_dim) + chosen


def row_length(engine_kwargs: Mapping[str, Any], model: ModelConfig) -> int:
    """Returns the longest row in tokens, for which the engine's cache must have room."""
    limit = engine_kwargs.get("max_model_len")
    return limit if isinstance(limit, int) and limit > 0 else model.max_positions


def cache_bytes(model: ModelConfig, gpu_bytes: float, parallel: Parallel, utilization: float) -> float | None:
    """Returns a data-parallel rank's memory for the cache; negative when the weights alone do not fit."""
    weights = model.rank_weight_bytes(parallel)
    if weights is None:
        return None
    usable = gpu_bytes * parallel.gpus_per_rank * utilization
    return usable - weights - usable * _ACTIVATIONS
