"""Configurations of Llama 3.1, and of two mixtures of experts, as in their `config.json`."""

from __future__ import annotations

from typing import Any

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_70B: dict[str, Any] = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
}  # fmt: skip
LLAMA_70B |= {"num_attention_heads": 64}
MIXTRAL: dict[str, Any] = {
    **LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8, "vocab_size": 32000,
    "max_position_embeddings": 32768,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
