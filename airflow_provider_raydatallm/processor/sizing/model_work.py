"""How many operations a model takes for tokens, by its configuration. Pure but for reading that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_raydatallm.processor.sizing.cards import Card
from airflow_provider_raydatallm.processor.sizing.model_config import (
    layer_parameters,
    load_config,
    parse_model_config,
)

#: Decoders of gated layers, whose parameters `model_config` counts.
_TYPES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "smollm3"}
)
#: Quantizations that multiply in fp8; the others only store weights in fewer bits, and multiply in 16.
_IN_FP8, _ONLY_STORED = frozenset({"fp8"}), frozenset({"awq", "awq_marlin", "gptq", "gptq_marlin"})
_HALF_BYTES = 2.0


@dataclass(frozen=True)
class ModelWork:
    """
    :ivar layers: parameters by which each token is multiplied: of a mixture, those of its chosen experts.
    :ivar head: those by which each token is multiplied that is sampled.
    :ivar attention: multiplications for a token with each token before it: layers x heads x their size x 2.
    :ivar precision: in which they are.
    """

    layers: float
    head: float
    attention: float
    precision: Literal["half", "fp8"]

    def operations(self, computed: float, sampled: float, context: float) -> float:
        """Returns additions and multiplications, as datasheets count them. Adapters, and what drafts of
        speculative decoding take, are left out: they say nothing of the slice's own work.

        :param computed: tokens of prompts that were in no cache, and of answers.
        :param sampled: tokens of answers.
        :param context: tokens before each computed one, summed over them.
        """
        return 2 * (self.layers * computed + self.head * sampled + self.attention * context)

    def peak(self, card: Card) -> float:
        """Returns operations per second that the card does at most; one without fp8 multiplies in 16 bit."""
        return card.fp8 if self.precision == "fp8" and card.fp8 is not None else card.half


def read_model_work(model_source: str, engine_kwargs: Mapping[str, Any]) -> ModelWork | None:
    """Returns None where the model's local files do not say, or it is none of `_TYPES`."""
    config = load_config(model_source, engine_kwargs)
    if config is None or config.get("model_type") not in _TYPES:
        return None
    try:
        sizes, layers = parse_model_config(config, engine_kwargs), layer_parameters(config)
        head = int(config["vocab_size"]) * int(config["hidden_size"])
    except (ValueError, KeyError, TypeError):
        return None
    method = engine_kwargs.get("quantization") or sizes.quantization
    precision: Literal["half", "fp8"] = "fp8" if method in _IN_FP8 else "half"
    is_known = method in _IN_FP8 | _ONLY_STORED or (method is None and sizes.weight_bytes_each == _HALF_BYTES)
    if layers is None or not is_known:
        return None
    return ModelWork(layers, head, 2 * sizes.layers * sizes.heads * sizes.head_dim, precision)
