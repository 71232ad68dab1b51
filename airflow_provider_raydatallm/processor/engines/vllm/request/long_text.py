"""A text that is longer than its model takes: its windows, and the vector of all of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: What a worker takes beside the parameters of pooling: how to cut what is too long, under this name.
LONG_TEXT = "long_text"
#: Of shorter vectors, as vLLM and PyTorch have it: a vector of zeros stays one.
_SHORTEST = 1e-12


@dataclass(frozen=True)
class LongText:
    """
    :param before, after: special tokens that the tokenizer puts around a text, and each window has.
    :param normalize: whether the vector is to have length 1.
    """

    before: int
    after: int
    normalize: bool

    def windows(self, tokens: Sequence[int], limit: int) -> list[list[int]]:
        """:raises ValueError: when special tokens leave no room for any of the text."""
        end = len(tokens) - self.after
        before, text, after = tokens[: self.before], tokens[self.before : end], tokens[end:]
        size = limit - self.before - self.after
        if size < 1:
            raise ValueError(f"max_model_len is {limit:,}, which special tokens fill: raise it")
        starts = range(0, len(text), size)
        return [[*before, *text[start : start + size], *after] for start in starts]

    def mean(self, vectors: Sequence[np.ndarray], windows: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns the mean of the windows' vectors, weighted by their tokens of the text."""
        weights = [len(window) - self.before - self.after for window in windows]
        mean: np.ndarray = np.average(np.asarray(vectors, np.float64), axis=0, weights=weights)
        length = np.linalg.norm(mean) if self.normalize else 1.0
        return (mean / max(length, _SHORTEST)).astype(np.float32)
