"""How much of the answers stands in their prompts already, which speculation by n-grams would draft: on a
sample of rows, as this runs in the process that the GPU waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: One of so many rows.
_SAMPLED = 64
#: Fewer tokens say little.
_FEWEST_TOKENS = 500


class RepetitionSample:
    """repeated, tokens: of the sampled answers."""

    def __init__(self) -> None:
        self.repeated = self.tokens = 0
        self._rows = 0

    def add(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Looks which tokens follow the two before them in the prompt, too."""
        self._rows += 1
        if self._rows % _SAMPLED != 1:
            return
        known = set(_triples(prompt))
        self.tokens += len(answer)
        self.repeated += sum(triple in known for triple in _triples([*prompt[-2:], *answer]))


def repeated_share(samples: Iterable[RepetitionSample]) -> float | None:
    """None where too few tokens were sampled."""
    samples = list(samples)
    tokens = sum(sample.tokens for sample in samples)
    return sum(sample.repeated for sample in samples) / tokens if tokens >= _FEWEST_TOKENS else None


def _triples(tokens: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    return zip(tokens, tokens[1:], tokens[2:], strict=False)
