"""A small Whisper of random weights: what it writes depends on each sample, and means nothing."""

from __future__ import annotations

from pathlib import Path

#: Tokens that it has positions for, in its prompt and transcript together.
POSITIONS = 24
_CONTROL_TOKENS = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|translate|>", "<|transcribe|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip


def write_speech_model(folder: Path) -> Path:
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    write_speech_tokenizer(folder)
    tokenizer = WhisperTokenizer.from_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer).save_pretrained(folder)
    end, start = tokenizer.convert_tokens_to_ids(_CONTROL_TOKENS[:2])
    tokens = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    torch.manual_seed(1)
    size = {"layers": 2, "attention_heads": 2, "ffn_dim": 128}
    config = WhisperConfig(
        vocab_size=len(tokenizer), d_model=64, num_mel_bins=80, max_target_positions=POSITIONS, init_std=0.3,
        **{f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in size.items()},
        **tokens,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(**tokens)
    model.save_pretrained(folder)
    return folder


def write_speech_tokenizer(folder: Path) -> Path:
    """One token for each character that is printed; so any tokens together are a text."""
    from transformers import WhisperTokenizer

    tokens = [*map(chr, range(ord("!"), ord("~") + 1)), _CONTROL_TOKENS[0]]
    tokenizer = WhisperTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": _CONTROL_TOKENS[1:]})
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    return folder
