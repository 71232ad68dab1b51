"""Small BERT models of random weights, as classifiers and rerankers are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_WORDS = ["a", "bank", "of", "law", "firm", "sells", "cars", "makes", "and", "with", "large", "online"]


def write_bert_tokenizer(folder: Path) -> Path:
    from transformers import BertTokenizerFast

    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, *letters, *(f"##{c}" for c in letters)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(vocab)))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=128).save_pretrained(folder)
    return folder


def write_bert(folder: Path, labels: list[str], **config: Any) -> Path:
    """A classifier; of one label, a reranker."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    write_bert_tokenizer(folder)
    torch.manual_seed(1)
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(AutoTokenizer.from_pretrained(folder)), max_position_embeddings=128,
            id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)},
            initializer_range=0.5, **size, **config,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    return folder
