"""Trains the demo's model: `python -m demo.tiny_model OUT_DIR`, a minute or so on two CPU cores.

It is a real, if tiny, chat model in a Hugging Face folder, which vLLM serves like any Llama: 0.8 million
weights, a byte-level BPE tokenizer of 1,024 entries and a chat template. It has learnt one task: to name the
industry of a company, in a dozen wordings, with or without a system prompt, as a plain label or as JSON.
Nothing is downloaded. `demo.examples` has the training examples, which share no proper noun with a dataset.

The folder OUT_DIR appears complete or not at all, even if training is killed. Its `recipe.json` holds a
hash of the sources that decide the weights: if it is up to date, `train` returns at once. A lock serializes
trainings of one folder.

Imports torch and transformers only when it trains. Run it as its own process, so that torch and its threads
end with it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from demo.examples import (
    ANSWER,
    CHAT_TEMPLATE,
    END,
    PAD,
    PROMPT,
    SPECIAL_TOKENS,
    SYSTEM_PROMPT,
    Example,
    examples,
    render,
)
from demo.names import companies

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

STEPS = 180
BATCH = 64
VOCABULARY = 1_024
HIDDEN = 128
LAYERS = 3
CONTEXT = 2_048
MATRIX_RATE, OTHER_RATE = 0.02, 4e-3
SEED = 11
HELD_OUT = 500
LEAST_ACCURACY = 0.95


def train(out: Path, *, progress: Callable[[str], None] | None = None) -> Path:
    """Trains the tiny model into `out`, unless it is there and of this recipe. Returns `out`.

    `progress` gets a short line every few steps. Raises FileExistsError if `out` holds files that this
    function did not write, and RuntimeError if the model answers fewer than 95 of 100 held-out names right
    (a broken recipe).
    """
    out = Path(out)
    if _recipe_in(out) == recipe():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with _locked(out.with_name(f".{out.name}.lock")):
        if _recipe_in(out) == recipe():
            return out
        if out.exists() and _recipe_in(out) is None and any(out.iterdir()):
            raise FileExistsError(
                f"{out} exists and is not a model of demo.tiny_model: choose another folder or remove it"
            )
        unfinished = out.with_name(f".{out.name}.unfinished")
        outdated = out.with_name(f".{out.name}.outdated")
        for leftover in (unfinished, outdated):
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished.mkdir()
        _train_into(unfinished, progress or (lambda line: None))
        if out.exists():
            os.replace(out, outdated)
        os.replace(unfinished, out)
        shutil.rmtree(outdated, ignore_errors=True)
    return out


def recipe() -> str:
    """Returns a hash of the sources that decide the weights."""
    digest = hashlib.sha256()
    for source in ("tiny_model.py", "examples.py", "names.py", "names.toml"):
        digest.update(Path(__file__).with_name(source).read_bytes())
    return digest.hexdigest()


# --- training -----------------------------------------------------------------------------------------------


def _train_into(folder: Path, progress: Callable[[str], None]) -> None:
    """Trains, tests on held-out names and saves; writes the recipe file last."""
    progress("tiny model: loading torch")
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    start = time.monotonic()
    torch.set_num_threads(min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    lessons = examples(rng, STEPS * BATCH)
    tokenizer = _tokenizer([prompt + answer for prompt, answer, _ in lessons[:8_000]])
    model = _model()
    # Muon on the layers' matrices reaches in 100 steps what AdamW alone reaches in 300.
    # It computes in bfloat16: CPUs without instructions for that take about twice the time.
    matrices = [
        weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name
    ]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, weight_decay=0.05)
    adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    for step, (tokens, labels) in enumerate(_batches(rng, tokenizer, lessons)):
        muon.param_groups[0]["lr"] = MATRIX_RATE * _schedule(step)
        adam.param_groups[0]["lr"] = OTHER_RATE * _schedule(step)
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        scored = labels >= 0
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[scored]), labels[scored])
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        if (step + 1) % 10 == 0:
            seconds = time.monotonic() - start
            progress(f"tiny model: step {step + 1} of {STEPS}, loss {loss.item():.3f}, {seconds:.0f} s")

    # Tests the weights as they are saved (bfloat16), computed in float32, which is faster on CPUs.
    accuracy = _accuracy(model.to(torch.bfloat16).to(torch.float32), tokenizer)
    progress(
        f"tiny model: {accuracy:.1%} of {HELD_OUT} held-out names right, {time.monotonic() - start:.0f} s"
    )
    if accuracy < LEAST_ACCURACY:
        raise RuntimeError(
            f"the tiny model got {accuracy:.1%} of held-out names right, under {LEAST_ACCURACY:.0%}"
        )
    _save(folder, model.to(torch.bfloat16), tokenizer)
    recipe_record = {
        "recipe": recipe(),
        "held_out_accuracy": accuracy,
        "seconds": round(time.monotonic() - start, 1),
    }
    (folder / "recipe.json").write_text(json.dumps(recipe_record, indent=1) + "\n", encoding="utf-8")


def _tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of the training text, so that any text at all has tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _model() -> LlamaForCausalLM:
    """Returns the untrained model; vLLM has kernels for heads of size 32 on every device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=3 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HIDDEN // 32,
            num_key_value_heads=HIDDEN // 32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=None,
            pad_token_id=SPECIAL_TOKENS.index(PAD),
            eos_token_id=SPECIAL_TOKENS.index(END),
        )
    )


def _save(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Writes a Hugging Face model folder, with tokenizer settings that transformers 4 and 5 both read."""
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": list(SPECIAL_TOKENS[2:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o644)


def _batches(
    rng: random.Random, tokenizer: Tokenizer, lessons: Sequence[Example]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields token ids and next-token labels, both [BATCH, longest], with labels -1 outside answers.

    Examples of similar length share a batch.
    """
    import torch

    answer, pad = SPECIAL_TOKENS.index(ANSWER), SPECIAL_TOKENS.index(PAD)
    together = 16 * BATCH
    for start in range(0, len(lessons), together):
        some = lessons[start : start + together]
        rows: list[tuple[list[int], int]] = []
        for one, encoding in zip(
            some, tokenizer.encode_batch([prompt + answer for prompt, answer, _ in some]), strict=True
        ):
            rows.append((encoding.ids, encoding.ids.index(answer) + one.opening_forced))
        rows.sort(key=lambda row: len(row[0]))
        batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
        rng.shuffle(batches)
        for batch in batches:
            longest = max(len(ids) for ids, _ in batch) - 1
            tokens = torch.full((len(batch), longest), pad)
            labels = torch.full((len(batch), longest), -1)
            for row, (ids, first) in enumerate(batch):
                tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
                labels[row, first : len(ids) - 1] = torch.tensor(ids[first + 1 :])
            yield tokens, labels


def _schedule(step: int) -> float:
    """Returns the learning rate over its peak: a linear rise for 5% of the steps, then a cosine to 2%."""
    rise = STEPS // 20
    if step < rise:
        return (step + 1) / rise
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - rise) / (STEPS - rise)))


def _accuracy(model: LlamaForCausalLM, tokenizer: Tokenizer) -> float:
    """Returns the share of held-out companies whose whole plain answer greedy decoding gives, with its end.

    Greedy decoding gives an answer exactly if each of its tokens is the likeliest after those before it, so
    one forward pass is enough.
    """
    import torch

    held_out = companies(random.Random(SEED + 1), HELD_OUT, split="demo")
    right = 0
    with torch.inference_mode():
        for company in held_out:
            prompt = render(PROMPT.replace("{Company}", company.name), SYSTEM_PROMPT)
            ids = torch.tensor(tokenizer.encode(prompt + company.industry + END).ids)
            first = int((ids == SPECIAL_TOKENS.index(ANSWER)).nonzero()[0])
            likeliest = model(input_ids=ids[None, :-1]).logits[0, first:].argmax(dim=-1)
            right += bool((likeliest == ids[first + 1 :]).all())
    return right / len(held_out)


# --- folders ------------------------------------------------------------------------------------------------


def _recipe_in(folder: Path) -> str | None:
    """Returns the recipe hash of the model in a folder; None if it holds none of this module."""
    try:
        recipe_record = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return recipe_record.get("recipe") if isinstance(recipe_record, dict) else None


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Holds an exclusive lock, which ends with the process at the latest."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m demo.tiny_model", description="Train the demo's tiny chat model."
    )
    parser.add_argument("out", type=Path, help="folder of the model; nothing is done if it holds one already")
    options = parser.parse_args(arguments)
    live = sys.stderr.isatty()
    lines = 0

    def show(line: str) -> None:
        nonlocal lines
        lines += 1
        if live:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif lines % 5 == 1:
            print(line, file=sys.stderr, flush=True)

    # Threads that wait without spinning: beside other work, spinning costs as much CPU time as the training.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start = time.monotonic()
    try:
        train(options.out, progress=show)
    except FileExistsError as error:
        parser.exit(1, f"{error}\n")
    finally:
        if live and lines:
            print("\r\x1b[K", end="", file=sys.stderr)
    recipe_record = json.loads((options.out / "recipe.json").read_text(encoding="utf-8"))
    what = f"trained in {time.monotonic() - start:.0f} s" if lines else "already trained"
    print(f"{options.out}: {what}, {recipe_record['held_out_accuracy']:.1%} of held-out names right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
