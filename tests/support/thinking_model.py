"""The demo's model, made to think before it answers: its chat template begins an answer with `<think>`, which
the model has not learnt to end, nor any answer. vLLM ends thoughts by a budget, and answers by a grammar."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from demo.examples import ANSWER, CHAT_TEMPLATE

MARKS = ("<think>", "</think>", "<|stop|>")


def make_thinking(model: Path, out: Path) -> Path:
    """Copies a model of `demo.tiny_model`, and names the last tokens of its vocabulary anew."""
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
    config["eos_token"] = MARKS[-1]
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps({**settings, "eos_token_id": vocabulary[MARKS[-1]]}))
    return out
