"""Rows for an engine: prompts of words, with the number of tokens that each answer has."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.fresh import ROOT

#: Distinct prefixes that the rows of `prefix` share.
PREFIXES = 100
#: Kinds of rows, each with how many of them keep a large GPU busy for a minute.
ROWS = {"short": 20_000, "mixed": 6_000, "prefix": 20_000, "tail": 16_000, "lognormal": 6_000}
ASK = "You are given a company record. Answer with its industry only. Record: "
#: Answers always reach max_tokens: with random weights none ends by itself.
SAMPLING = {"temperature": 1.0, "ignore_eos": True}


def rows_of(
    work: str, count: int, repeating: bool = False, longest: int = 1500, grouped: bool = False
) -> list[dict[str, Any]]:
    """`short`: 40 words in, 16 tokens out. `tail`: the same, but 20 tokens out, and 1,600 in 1% of the rows.
    `lognormal`: the same, but 1 to 2,000 tokens out, half of them under 33. `mixed`: log-normal lengths, 20
    to 1,500 words in, 8 to 400 tokens out. `prefix`: one of 100 prefixes of 400 words (some 500 tokens), then
    40 words; 64 tokens out. Each prompt differs from all others from its first word, or from the end of its
    prefix, unless `repeating`: then most of a prompt is in the engine's cache.

    :param longest: words of a prompt; below 1,500 all lengths shrink in proportion.
    :param grouped: rows with the same prefix follow one another; else they are shuffled.
    """
    words = Path(ROOT, "LICENSE").read_text().split()
    rnd = random.Random(7)
    starts = [
        f"{n} " + " ".join(words[(n * 13 + j) % len(words)] for j in range(longest * 4 // 15)) + " "
        for n in range(PREFIXES)
    ]
    rows = []
    for i in range(count):
        size, answer = min(40, longest // 4), 16
        if work == "mixed":
            size = int(min(longest, max(20, rnd.lognormvariate(5.2, 0.9) * longest / 1500)))
            answer = int(min(400, max(8, rnd.lognormvariate(4.4, 0.8) * longest / 1500)))
        elif work == "tail":
            answer = 1600 if rnd.random() < 0.01 else 20
        elif work == "lognormal":
            answer = int(min(2000, max(1, rnd.lognormvariate(3.5, 1.5))))
        elif work == "prefix":
            answer = 64
        start = rnd.randrange(len(words) - 1)
        text = " ".join(words[(start + j) % len(words)] for j in range(size))
        new = "" if repeating else f"{rnd.randrange(10**9)} "
        shared = rnd.choice(starts) if work == "prefix" else ""
        rows.append({"i": i, "text": shared + new + text, "answer_tokens": answer})
    # Each begins with the number of its prefix.
    return sorted(rows, key=lambda row: str(row["text"]).split()[0]) if grouped else rows
