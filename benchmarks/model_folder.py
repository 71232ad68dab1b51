"""A model folder without weights, for engines that run none."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.fresh import ROOT
from tests.support.llama import LLAMA_8B

_SPECIAL = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_VOCABULARY = 8000


def write_model_folder(folder: Path) -> Path:
    """Takes a second. A word of an English text has some 1.5 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[*_SPECIAL.values(), "<|system|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [path.read_text() for path in (ROOT / "LICENSE", *sorted((ROOT / "docs").glob("*.md")))]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **_SPECIAL, "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **LLAMA_8B}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
