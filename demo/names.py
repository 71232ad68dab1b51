"""Company names of known industry, for the demo's dataset and for training its model.

A name is a pattern of `names.toml` filled with proper nouns: "{p} & {q} LLP" with "Hartmann" and "Pruitt".
Each pattern belongs to one industry, so `industry_of` computes the true industry from a name and no dataset
needs a column for it.

Training and test names are disjoint by construction: the CRC-32 of a proper noun puts it into the `train` or
the `demo` split, no noun is a word of a pattern, and all nouns of a name are of one split. So a dataset of
`demo.customers` shares with the training of `demo.tiny_model` only words such as "Orthopedic Clinic".

Imports the standard library only.
"""

from __future__ import annotations

import random
import re
import tomllib
import zlib
from collections.abc import Sequence
from itertools import accumulate, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

LABELS = (
    "Law Firm",
    "Healthcare",
    "Technology",
    "Retail",
    "Consulting",
    "Manufacturing",
    "Finance",
    "Real Estate",
    "Other",
)
"""The nine answers of the reference workload, in its order."""

DATA_FILE = Path(__file__).with_suffix(".toml")
DATA: dict[str, Any] = tomllib.loads(DATA_FILE.read_text(encoding="utf-8"))
SURNAMES: list[str] = DATA["surnames"].split()
PLACES: list[str] = DATA["places"].split()

Split = Literal["train", "demo"]


class Company(NamedTuple):
    """A company's name and its true industry; that of a name without a hint is "Other"."""

    name: str
    industry: str


def industry_of(company: str) -> str | None:
    """Returns the true industry of a generated name; None for any other name."""
    known = _PATTERN_OF_SHAPE.get(_WORD.sub(_blank_if_noun, company))
    return known.industry if known is not None else None


def companies(
    rng: random.Random, count: int, *, split: Split, more_nouns: Sequence[str] = ()
) -> list[Company]:
    """Returns `count` companies with proper nouns of `split` and `more_nouns`, of equally likely industries.

    Raises ValueError if one of `more_nouns` belongs to the other split or is a word of a pattern.
    """
    taken = (_ALL_NOUNS - _WORDS_OF_SPLIT[split] | _PATTERN_WORDS).intersection(more_nouns)
    if taken:
        raise ValueError(f"not free to be proper nouns of split {split!r}: {sorted(taken)}")
    patterns = rng.choices(_PATTERNS, cum_weights=_PATTERN_WEIGHTS, k=count)
    people = [*_PEOPLE[split], *more_nouns]
    fills = zip(
        rng.choices([*_NOUNS[split], *more_nouns], k=count),
        rng.choices(people, k=count),
        rng.choices(people, k=count),
        rng.choices(people, k=count),
        strict=True,
    )
    return [
        Company(pattern.text.format(n=n, p=p, q=q, r=r), pattern.industry)
        for pattern, (n, p, q, r) in zip(patterns, fills, strict=True)
    ]


def proper_nouns(split: Split) -> frozenset[str]:
    """Returns every proper noun of a split, one word each: of "Blue Ridge" "Blue", as "Ridge" is shared."""
    return frozenset(_WORDS_OF_SPLIT[split])


# --- proper nouns ----------------------------------------------------------------------------------------


def _split_of(noun: str) -> Split:
    """Two in five proper nouns belong to the demo."""
    return "demo" if zlib.crc32(noun.encode()) % 5 < 2 else "train"


_SPLITS: tuple[Split, ...] = ("train", "demo")
_FEATURES = DATA["features"].split()
_COINED = ["".join(parts) for parts in product(DATA["coined_starts"].split(), DATA["coined_ends"].split())]
_PEOPLE = {split: [noun for noun in SURNAMES if _split_of(noun) == split] for split in _SPLITS}
_PLACES_OF = {split: [noun for noun in PLACES if _split_of(noun) == split] for split in _SPLITS}
_COINED_OF = {split: [noun for noun in _COINED if _split_of(noun) == split] for split in _SPLITS}
_WORDS_OF_SPLIT = {split: {*_PEOPLE[split], *_PLACES_OF[split], *_COINED_OF[split]} for split in _SPLITS}
_NOUNS = {
    split: [
        *_PEOPLE[split] * 4,
        *_PLACES_OF[split] * 3,
        *(f"{place} {feature}" for place, feature in product(_PLACES_OF[split], _FEATURES)),
        *_COINED_OF[split] * 4,
    ]
    for split in _SPLITS
}
"""Values of `{n}` in a pattern; `{p}`, `{q}` and `{r}` are surnames."""


# --- patterns -----------------------------------------------------------------------------------------------


class _Pattern(NamedTuple):
    text: str
    industry: str


def _weighted_patterns() -> dict[_Pattern, float]:
    """Returns every pattern with its weight; the weights of an industry add up to 1."""
    weights: dict[_Pattern, float] = {}
    for group in DATA["group"]:
        pairs = product(group.get("modifiers", ()), group.get("heads", ()))
        cores = [*(f"{{n}} {pair}" for pair in map(" ".join, pairs)), *group["more"] * group.get("times", 1)]
        endings = DATA["endings"][group["endings"]] if "endings" in group else [""]
        for core, ending in product(cores, endings):
            pattern = _Pattern(core + ending, group["industry"])
            weights[pattern] = weights.get(pattern, 0.0) + group["share"] / (len(cores) * len(endings))
    return weights


_WEIGHTS = _weighted_patterns()
_PATTERNS = list(_WEIGHTS)
_PATTERN_WEIGHTS = list(accumulate(_WEIGHTS.values()))

# A letter run, and the shared second word of a place if it follows: "Blue Ridge" is one blank, as "Hart" is.
_WORD = re.compile(rf"([^\W\d_]+)(?: (?:{'|'.join(_FEATURES)})\b)?")
_ALL_NOUNS = _WORDS_OF_SPLIT["train"] | _WORDS_OF_SPLIT["demo"]
_PATTERN_WORDS = {
    *_FEATURES,
    *(word for pattern in _PATTERNS for word in re.findall(r"[^\W\d_]+", pattern.text)),
}
_PATTERN_OF_SHAPE = {re.sub(r"\{[npqr]\}", "{}", pattern.text): pattern for pattern in _PATTERNS}


def _blank_if_noun(match: re.Match[str]) -> str:
    return "{}" if match[1] in _ALL_NOUNS else match[0]
