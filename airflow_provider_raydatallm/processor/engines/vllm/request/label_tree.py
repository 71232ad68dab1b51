"""Tells labels apart by as few tokens as possible: which tokens to compare, and how probable each label is.

A label is a path through the tree of the labels' tokens. Where the tree branches, the model says how probable
each branch is, in one request; most sets of labels branch once, at their first token. A label that others
begin with competes with them through the end of the turn. The probabilities of branches, renormalised over
the branches, multiply along a path. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count, groupby
from typing import Any

from pydantic_core import to_json

#: What a worker takes in place of sampling parameters: a tree, under this name.
LABELS = "labels"
#: vLLM's limit of `logprob_token_ids`.
_MOST_TOKENS = 128
#: Requests a row, above which a grammar costs less.
_MOST_REQUESTS = 4


class LabelsNotToldApart(ValueError):
    """A few requests a row cannot tell the labels apart."""


@dataclass(frozen=True)
class Branching:
    """A place in the tree: the tokens that lead there after the prompt, and those that may follow."""

    prefix: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class LabelTree:
    """
    :param requests: what to ask of the model.
    :param branches: of each place where labels branch, the branches: of each, which (request, token) lead
        into it.
    :param paths: of each label, the branches (place, branch) that it takes.
    """

    requests: tuple[Branching, ...]
    branches: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    paths: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of_labels(cls, labels: Sequence[Sequence[int]], end_tokens: Sequence[int]) -> LabelTree:
        """
        :param labels: the tokens of each, two or more.
        :param end_tokens: that end the model's turn.
        :raises LabelsNotToldApart: when two labels have the same tokens, or many requests are needed.
        """
        requests: list[Branching] = []
        branches: list[tuple[tuple[tuple[int, int], ...], ...]] = []
        paths: list[list[tuple[int, int]]] = [[] for _ in labels]

        def grow(members: list[int], depth: int) -> None:
            def step(i: int) -> int:
                return labels[i][depth] if depth < len(labels[i]) else -1  # -1: it ends here

            groups = [list(group) for _, group in groupby(sorted(members, key=step), key=step)]
            if len(groups) == 1:
                if step(members[0]) == -1:
                    raise LabelsNotToldApart("two of the labels have the same tokens")
                grow(members, depth + 1)
                return
            if any(step(group[0]) == -1 for group in groups) and not end_tokens:
                raise LabelsNotToldApart("a label begins another, and no token ends the model's turn")
            prefix, place = tuple(labels[members[0]][:depth]), len(branches)
            of_groups = [end_tokens if step(g[0]) == -1 else (step(g[0]),) for g in groups]
            asked = [token for tokens in of_groups for token in tokens]
            first = len(requests)
            for start in range(0, len(asked), _MOST_TOKENS):
                requests.append(Branching(prefix, tuple(asked[start : start + _MOST_TOKENS])))
            at = count()
            branches.append(tuple(tuple(_place(first, next(at)) for _ in tokens) for tokens in of_groups))
            for number, group in enumerate(groups):
                for i in group:
                    paths[i].append((place, number))
                if len(group) > 1:
                    grow(group, depth + 1)

        grow(list(range(len(labels))), 0)
        if len(requests) > _MOST_REQUESTS:
            raise LabelsNotToldApart(
                f"the labels' first tokens are shared so often that each row would take {len(requests)} "
                f"requests (at most {_MOST_REQUESTS})"
            )
        return cls(tuple(requests), tuple(branches), tuple(map(tuple, paths)))

    @property
    def most_tokens(self) -> int:
        """That a request has after the prompt, its answer included."""
        return 1 + max(len(request.prefix) for request in self.requests)

    @cached_property
    def params(self) -> str:
        """What a worker takes in place of sampling parameters (JSON)."""
        return to_json({LABELS: asdict(self)}).decode()

    @classmethod
    def from_json(cls, value: Any) -> LabelTree:
        requests = tuple(Branching(tuple(r["prefix"]), tuple(r["tokens"])) for r in value["requests"])
        return cls(requests, value["branches"], value["paths"])

    def probabilities(self, logprobs: Sequence[Sequence[float]]) -> list[float]:
        """Returns each label's probability; together 1.

        :param logprobs: of each request, the logarithms of its tokens' probabilities.
        """
        of_branches = [list(self._renormalised(branching, logprobs)) for branching in self.branches]
        return [math.prod(of_branches[place][branch] for place, branch in path) for path in self.paths]

    @staticmethod
    def _renormalised(
        branching: Sequence[Sequence[Sequence[int]]], logprobs: Sequence[Sequence[float]]
    ) -> Iterator[float]:
        values = [[logprobs[request][token] for request, token in branch] for branch in branching]
        most = max(max(branch) for branch in values)
        if math.isinf(most) or math.isnan(most):
            raise ValueError("the model gives none of the labels a probability")
        weights = [sum(math.exp(value - most) for value in branch) for branch in values]
        total = sum(weights)
        yield from (weight / total for weight in weights)


def _place(first_request: int, position: int) -> tuple[int, int]:
    """Where a branching's token stands: its request, and its position there."""
    return first_request + position // _MOST_TOKENS, position % _MOST_TOKENS
