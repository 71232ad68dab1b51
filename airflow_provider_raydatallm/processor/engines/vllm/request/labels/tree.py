"""Tells labels apart by as few tokens as possible: which tokens to compare, and how probable each label is.

A label is a path through the tree of the labels' tokens, or several paths, where a model may write it in
several ways: they add up. Where the tree branches, the model says how probable each branch is, in one
request; most sets of labels branch once, at their first token. A label that others begin with competes with
them through the end of the turn. The probabilities of branches, renormalised over the branches, multiply
along a path. So a branch bounds what lies beyond it, and is asked about only where that matters. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count, groupby
from statistics import fmean
from typing import Any, NamedTuple

from pydantic_core import to_json

#: What a worker takes in place of sampling parameters: a tree, under this name.
LABELS = "labels"
#: vLLM's limit of `logprob_token_ids`.
_MOST_TOKENS = 128
#: Requests of a row whose labels are all to be told exactly.
_MOST_REQUESTS = 4


class LabelsNotToldApart(ValueError):
    """A few requests a row cannot tell the labels apart."""


@dataclass(frozen=True)
class Branching:
    """A place in the tree: the tokens that lead there after the prompt, and those that may follow."""

    prefix: tuple[int, ...]
    tokens: tuple[int, ...]


class _Bounds(NamedTuple):
    """
    :param least: each label's probability, at least.
    :param most: at most.
    :param unknown: places that were not asked about, and how probable what lies beyond each is.
    """

    least: list[float]
    most: list[float]
    unknown: dict[int, float]


@dataclass(frozen=True)
class LabelTree:
    """
    :param requests: what to ask of the model.
    :param branches: of each place where labels branch, the branches: of each, which (request, token) lead
        into it.
    :param paths: of each label, the ways to write it: of each, the branches (place, branch) that it takes.
    :param is_exact: whether each label's probability is wanted, and not only which is the largest.
    """

    requests: tuple[Branching, ...]
    branches: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    paths: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    is_exact: bool

    @classmethod
    def of_labels(
        cls, labels: Sequence[Sequence[Sequence[int]]], end_tokens: Sequence[int], *, is_exact: bool
    ) -> LabelTree:
        """
        :param labels: of each of two or more, the ways to write it: the tokens of each.
        :param end_tokens: that end the model's turn.
        :raises LabelsNotToldApart: when two labels have the same tokens, or all would take many requests.
        """
        requests: list[Branching] = []
        branches: list[tuple[tuple[tuple[int, int], ...], ...]] = []
        ways = [
            (label, way)
            for label, of_label in enumerate(labels)
            for way in dict.fromkeys(map(tuple, of_label))
        ]
        paths: list[list[tuple[int, int]]] = [[] for _ in ways]

        def grow(members: list[int], depth: int) -> None:
            def step(i: int) -> int:
                way = ways[i][1]
                return way[depth] if depth < len(way) else -1  # -1: it ends here

            groups = [list(group) for _, group in groupby(sorted(members, key=step), key=step)]
            if len(groups) == 1:
                if step(members[0]) == -1:
                    raise LabelsNotToldApart("two of the labels have the same tokens")
                grow(members, depth + 1)
                return
            if any(step(group[0]) == -1 for group in groups) and not end_tokens:
                raise LabelsNotToldApart("a label begins another, and no token ends the model's turn")
            prefix, place = ways[members[0]][1][:depth], len(branches)
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

        grow(list(range(len(ways))), 0)
        if is_exact and len(requests) > _MOST_REQUESTS:
            raise LabelsNotToldApart(
                f"the labels' first tokens are shared so often that each row would take {len(requests)} "
                f"requests (at most {_MOST_REQUESTS})"
            )
        of_labels = tuple(
            tuple(tuple(path) for path, (owner, _) in zip(paths, ways, strict=True) if owner == label)
            for label in range(len(labels))
        )
        return cls(tuple(requests), tuple(branches), of_labels, is_exact)

    @classmethod
    def of_questions(cls, questions: Sequence[Sequence[int]], answers: LabelTree) -> LabelTree:
        """Returns what asks how probable the first of some answers is, to each of some questions.

        :param questions: the tokens of each, which follow the prompt.
        :param answers: the answers' own tree.
        """
        of_one, places = len(answers.requests), len(answers.branches)
        requests = [
            replace(request, prefix=(*question, *request.prefix))
            for question in questions
            for request in answers.requests
        ]
        branches = [
            tuple(tuple((n * of_one + request, at) for request, at in branch) for branch in branching)
            for n in range(len(questions))
            for branching in answers.branches
        ]
        paths = [
            tuple(tuple((n * places + place, branch) for place, branch in way) for way in answers.paths[0])
            for n in range(len(questions))
        ]
        return cls(tuple(requests), tuple(branches), tuple(paths), is_exact=True)

    @property
    def most_tokens(self) -> int:
        """That a request has after the prompt, its answer included."""
        return 1 + max(len(request.prefix) for request in self.requests)

    @property
    def mean_requests(self) -> float:
        """Those that a label takes, all being as frequent."""
        of_labels = (
            {request for way in ways for place, _ in way for request in self._requests_of[place]}
            for ways in self.paths
        )
        return fmean(map(len, of_labels))

    @cached_property
    def params(self) -> str:
        """What a worker takes in place of sampling parameters (JSON)."""
        return to_json({LABELS: asdict(self)}).decode()

    @classmethod
    def from_json(cls, value: Any) -> LabelTree:
        requests = tuple(Branching(tuple(r["prefix"]), tuple(r["tokens"])) for r in value["requests"])
        return cls(requests, value["branches"], value["paths"], value["is_exact"])

    def next_requests(self, logprobs: Mapping[int, Sequence[float]]) -> list[int]:
        """Returns the requests to ask next, by those that were asked; none, where they decide.

        :param logprobs: of each request, the logarithms of its tokens' probabilities.
        """
        if not logprobs:
            return [0]  # its prompt is in the prefix cache then
        missing = [request for request in range(len(self.requests)) if request not in logprobs]
        if self.is_exact or not missing:
            return missing
        bounds = self._bounds(logprobs)
        leading = max(range(len(self.paths)), key=bounds.least.__getitem__)
        rivals = (most for label, most in enumerate(bounds.most) if label != leading)
        if not bounds.unknown or max(rivals) <= bounds.least[leading]:
            return []
        place = max(bounds.unknown, key=bounds.unknown.__getitem__)
        return [request for request in self._requests_of[place] if request not in logprobs]

    def probabilities(self, logprobs: Mapping[int, Sequence[float]]) -> list[float]:
        """Returns each label's probability; of one that need not be told exactly, what is known to be its.

        :param logprobs: of each request that was asked.
        """
        return self._bounds(logprobs).least

    def _bounds(self, logprobs: Mapping[int, Sequence[float]]) -> _Bounds:
        of_branches = [
            list(self._renormalised(branching, logprobs)) if logprobs.keys() >= requests else None
            for branching, requests in zip(self.branches, self._requests_of, strict=True)
        ]
        bounds = _Bounds([0.0] * len(self.paths), [0.0] * len(self.paths), {})
        for label, ways in enumerate(self.paths):
            for way in ways:
                probability = 1.0
                for place, branch in way:
                    if (of_place := of_branches[place]) is None:
                        bounds.unknown[place] = probability
                        break
                    probability *= of_place[branch]
                else:
                    bounds.least[label] += probability
                bounds.most[label] += probability
        return bounds

    @cached_property
    def _requests_of(self) -> list[set[int]]:
        """The requests of each place."""
        return [{request for branch in branching for request, _ in branch} for branching in self.branches]

    @staticmethod
    def _renormalised(
        branching: Sequence[Sequence[Sequence[int]]], logprobs: Mapping[int, Sequence[float]]
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
