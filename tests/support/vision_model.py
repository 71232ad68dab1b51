"""A small vision-language model of random weights: its answers depend on each pixel, and mean nothing.

It is an Idefics3, one of few that vLLM runs without torchvision.
"""

from __future__ import annotations

from pathlib import Path

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
_CONTROL_TOKENS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>", "<fake_token_around_image>", "<global-img>",
    "<end_of_utterance>", *_TILES,
]  # fmt: skip
_SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


def write_vision_model(folder: Path) -> Path:
    import torch
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
    )

    tokenizer = write_vision_tokenizer(folder)
    torch.manual_seed(1)
    text = {
        "model_type": "llama", "vocab_size": len(tokenizer), "num_key_value_heads": 2, "bos_token_id": 0,
        "eos_token_id": 3, "pad_token_id": 1, "max_position_embeddings": 4096, "initializer_range": 0.5,
    }  # fmt: skip
    config = Idefics3Config(
        vision_config={**_SIZE, "image_size": 56, "patch_size": 14, "initializer_range": 0.5},
        text_config={**_SIZE, **text},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=1,
        tie_word_embeddings=False,
    )
    Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=_TEMPLATE).save_pretrained(folder)
    return folder


def write_vision_tokenizer(folder: Path, template: str = _TEMPLATE):  # type: ignore[no-untyped-def]
    """One token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*_CONTROL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    of_bytes = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_bytes.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=of_bytes, bos_token="<s>", eos_token="<|im_end|>", pad_token="</s>",
        additional_special_tokens=_CONTROL_TOKENS[4:], model_max_length=1024, chat_template=template,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    return tokenizer
