"""LoRA adapters whose effect shows: with one, the demo's model begins its answer with a given text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: Of the demo's model, whose last layer the adapters change.
_MODULE = "base_model.model.model.layers.{layer}.mlp.down_proj"
RANK = 4


def forcing_adapters(texts: Mapping[Path, str], model: Path, questions: list[str]) -> None:
    """Writes adapters with each of which the model answers each of these questions with the first token of
    the adapter's text.

    :param texts: by the adapters' folders.
    :param model: one with tied embeddings.
    :param questions: fewer than its layers are wide.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    llama = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    layer = llama.config.num_hidden_layers - 1
    seen: list[torch.Tensor] = []
    down = llama.model.layers[layer].mlp.down_proj
    down.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0][-1]))
    with torch.inference_mode():
        for question in questions:
            messages = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            llama(torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]]))
    # One row of numbers makes 1 of what the last layer gets from each of them.
    row = torch.linalg.lstsq(torch.stack(seen), torch.ones(len(seen), 1), driver="gelsd").solution[:, 0]
    for folder, text in texts.items():
        [token, *_] = tokenizer(text, add_special_tokens=False)["input_ids"]
        wanted = llama.get_input_embeddings().weight[token].detach()
        lora_a, lora_b = torch.zeros(RANK, len(row)), torch.zeros(len(wanted), RANK)
        lora_a[0], lora_b[:, 0] = row, 300 * wanted / wanted.norm()
        module = _MODULE.format(layer=layer)
        weights = {f"{module}.lora_A.weight": lora_a.numpy(), f"{module}.lora_B.weight": lora_b.numpy()}
        write_adapter(folder, weights)


def write_adapter(folder: Path, weights: Mapping[str, np.ndarray] | None = None, **config: Any) -> Path:
    """Writes an adapter's folder; by default one that fits the demo's model and changes nothing."""
    from safetensors.numpy import save_file

    if weights is None:
        module = _MODULE.format(layer=0)
        weights = {
            f"{module}.lora_A.weight": np.zeros((RANK, 384), np.float32),
            f"{module}.lora_B.weight": np.zeros((128, RANK), np.float32),
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / "adapter_model.safetensors")
    whole = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["down_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    return folder
