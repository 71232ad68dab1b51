"""The demo's model, made to think before it answers: its chat template begins an answer with `<think>`, which
the model has not learnt to end. vLLM ends it, by a budget."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from demo.examples import ANSWER, CHAT_TEMPLATE

MARKS = ("<think>", "</think>")


def make_thinking(model: Path, out: Path) -> Path:
    """Copies a model of `demo.tiny_model`, and names the last two tokens of its vocabulary anew."""
    shutil.copytree(model, out)
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    last = {token: id_ for token, id_ in vocabulary.items() if id_ >= len(vocabulary) - len(MARKS)}
    tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"] if "".join(m) not in last]
    for mark, (token, id_) in zip(MARKS, last.items(), strict=True):
        del vocabulary[token]
        vocabulary[mark] = id_
        added.append({**added[0], "id": id_, "content": mark, "special": False})
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((out / "tokenizer_config.json").read_text())
    config["chat_template"] = CHAT_TEMPLATE.replace(ANSWER, ANSWER + MARKS[0])
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    return out
