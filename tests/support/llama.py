"""Configurations of Llama 3.1, as in their `config.json`."""

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
