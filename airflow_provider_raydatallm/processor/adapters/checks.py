"""What of an adapter cannot work, or what vLLM would silently do otherwise. Pure.

vLLM loads an adapter when the first row needs it, long after its engine has started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: vLLM's largest max_lora_rank.
MOST_RANK = 512
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
#: A layer of a decoder, and not of a vision model beside it.
_LAYER = re.compile(r"(?:^|\.)model\.(?:language_model\.)?layers\.(\d+)\.")
#: Modules whose inputs, or outputs, are the model's hidden states.
_HIDDEN_IN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_HIDDEN_OUT = ("o_proj", "down_proj")
#: The format's own limit.
_MOST_HEADER_BYTES = 100_000_000

Shapes = Mapping[str, list[int]]


def adapter_problems(
    config: Any, shapes: Shapes, model: Mapping[str, Any] | None, *, model_source: str, base_model: str | None
) -> Iterator[str]:
    """Yields what is wrong with an adapter.

    :param config: its `adapter_config.json`.
    :param shapes: of its weights, by their names.
    :param model: the model's `config.json`; None where it is not known.
    :param base_model: what the adapter should say that it was trained on; by default `model_source`, where
        that is a hub id.
    """
    if not isinstance(config, Mapping) or config.get("peft_type", "LORA") != "LORA":
        yield "its adapter_config.json is not that of a LoRA (peft_type 'LORA')"
        return
    rank = config.get("r")
    if type(rank) is not int or rank < 1 or "lora_alpha" not in config or "target_modules" not in config:
        yield "its adapter_config.json lacks r (a whole number), lora_alpha or target_modules"
        return
    if rank > MOST_RANK:
        yield f"its rank (r) is {rank}, and vLLM takes {MOST_RANK} at most"
    yield from _what_vllm_ignores(config)
    trained_on = str(config.get("base_model_name_or_path") or "")
    expected = base_model or model_source
    is_comparable = bool(_HUB_ID.fullmatch(trained_on) and _HUB_ID.fullmatch(expected))
    if trained_on and (base_model or is_comparable) and trained_on.lower() != expected.lower():
        yield (
            f"it was trained on {trained_on!r}, and the model is {expected!r}: if they are the same one, set "
            f"adapter.base_model to {trained_on!r}"
        )
    yield from _misfits(rank, shapes, (model or {}).get("text_config") or model or {})


def _what_vllm_ignores(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("use_dora"):
        yield "it is a DoRA (use_dora), which vLLM does not run"
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        yield "it has a bias, which vLLM does not apply"
    for name in ("modules_to_save", "rank_pattern", "alpha_pattern"):
        if config.get(name):
            yield f"it has {name}, which vLLM does not apply"


def _misfits(rank: int, shapes: Shapes, model: Mapping[str, Any]) -> Iterator[str]:
    """At most one: all weights of an adapter of another model misfit."""
    if not any(".lora_" in name for name in shapes):
        yield "its weights are none of a LoRA (lora_A and lora_B)"
        return
    layers, hidden = model.get("num_hidden_layers"), model.get("hidden_size")
    for name, shape in shapes.items():
        module, _, matrix = name.removesuffix(".weight").rpartition(".")
        if matrix not in ("lora_A", "lora_B") or len(shape) != 2 or ".experts." in name:
            continue
        ranks, size = shape if matrix == "lora_A" else shape[::-1]
        if ranks != rank:
            yield f"its weights are of rank {ranks} ({name}), and its adapter_config.json says {rank}"
            return
        layer = _LAYER.search(name)
        if layer is None:
            continue
        if isinstance(layers, int) and int(layer[1]) >= layers:
            yield f"it changes layer {layer[1]} ({name}), and the model has {layers} layers"
            return
        of_hidden = _HIDDEN_IN if matrix == "lora_A" else _HIDDEN_OUT
        if isinstance(hidden, int) and module.endswith(of_hidden) and size != hidden:
            yield f"it is for a hidden size of {size} ({name}), and the model's is {hidden}"
            return


def read_shapes(weights: Path) -> Shapes:
    """Reads the shapes that a safetensors file declares.

    :raises ValueError: when it is not one, or not whole.
    """
    size = weights.stat().st_size
    with open(weights, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise ValueError("it is not a safetensors file")
        header = json.loads(file.read(length))
    try:
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        shapes = {name: [int(n) for n in entry["shape"]] for name, entry in tensors.items()}
    except (AttributeError, KeyError, TypeError, IndexError) as e:
        raise ValueError("it is not a safetensors file") from e
    if end + length + 8 != size:
        raise ValueError(f"it has {size:,} bytes, and its header says {end + length + 8:,}: it is not whole")
    return shapes
