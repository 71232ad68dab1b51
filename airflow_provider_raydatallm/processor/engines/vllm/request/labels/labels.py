"""The tokens of a job's labels after a prompt, as the model would write them."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.engines.vllm.request.labels.tree import (
    LabelsNotToldApart,
    LabelTree,
)
from airflow_provider_raydatallm.processor.request.answers.grammar import check_can_be_written

logger = logging.getLogger(__name__)

#: A label's tokens depend on so many of the prompt's last ones, which the chat template mostly writes.
_TAIL_TOKENS = 2
_KNOWN_TAILS = 1000
#: Above it a grammar costs less (docs/benchmarks.md).
_MOST_MEAN_REQUESTS = 1.5
#: A prompt that is like any other.
PROMPT = ({"role": "user", "content": "x"},)
#: An answer that no template changes, and that occurs in none: a label may be part of a control token.
_ANSWER = "a5f0c2d7e"
#: A prompt's end that has the model think: <think>, [THINK], <seed:think>, <|begin_of_thought|>.
_THINKS = re.compile(r"[<\[◁][\w:|]*(?:think|thinking|thought|reasoning)\|?[>\]▷]$", re.IGNORECASE)
#: Beside those, a row may set nothing that decides how an answer is drawn.
_IGNORED = frozenset({"temperature", "max_tokens", "seed", "structured_outputs"})


class Render(Protocol):
    def __call__(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Applies the chat template."""


class Labels:
    """Thread-safe."""

    def __init__(
        self,
        wordings: Sequence[Sequence[str]],
        render: Render,
        tokenize: Callable[[Sequence[str]], list[list[int]]],
        *,
        is_exact: bool,
    ) -> None:
        """
        :param wordings: the labels; and in the same order, other texts that mean the same.
        :param is_exact: whether each one's probability is wanted, and not only which is the largest.
        :raises LabelsNotToldApart: when the model would have to write them.
        :raises SliceError: when the chat template has the model think first.
        """
        self._wordings, self._render, self._tokenize = wordings, render, tokenize
        self._is_exact = is_exact
        self._trees: dict[tuple[int, ...], LabelTree] = {}
        prompt = render(PROMPT)
        if _THINKS.search(prompt.rstrip()):
            raise SliceError(
                "choices are compared by the first token of an answer, and this model's chat template begins "
                "it with its thinking",
                kind="input",
                advice="Turn that off in chat_template_kwargs, or use another model",
            )
        self._lead, self._end_tokens = self._find_surroundings(prompt)
        [tokens] = tokenize([prompt])
        #: Of a row, after most prompts.
        self.mean_requests = self.tree_after(prompt, tokens).mean_requests

    @classmethod
    def of_job(
        cls, job: SliceJob, render: Render, tokenize: Callable[[Sequence[str]], list[list[int]]]
    ) -> Labels | None:
        """Returns None where the model writes its choice, by a grammar.

        :raises SliceError: where it would have to, and `labels.confidence` needs the probabilities.
        """
        if not job.compares_labels:
            return None
        task = job.task_as(Generate)
        assert task.choices is not None
        try:
            labels = cls([task.choices], render, tokenize, is_exact=task.labels.confidence)
            if not task.labels.confidence and labels.mean_requests > _MOST_MEAN_REQUESTS:
                raise LabelsNotToldApart(
                    f"their first tokens are shared, and {labels.mean_requests:.1f} requests a row cost more"
                )
            return labels
        except LabelsNotToldApart as e:
            if task.labels.confidence:
                raise SliceError(
                    f"labels.confidence=True is not possible with this model: {e}",
                    kind="input",
                    advice="Use choices that begin differently, or leave it out",
                ) from e
            check_can_be_written(task.choices)
            logger.info("the model writes the choices, by a grammar: %s", e)
            return None

    def after(self, prompt: str, tokens: Sequence[int], sampling_params: Mapping[str, Any]) -> LabelTree:
        """
        :param tokens: of the prompt.
        :param sampling_params: of the row.
        :raises ValueError: when they decide how an answer is drawn, or the labels cannot be told apart after
            this prompt.
        """
        check_draws_nothing(sampling_params)
        return self.tree_after(prompt, tokens)

    def tree_after(self, prompt: str, tokens: Sequence[int]) -> LabelTree:
        tail = tuple(tokens[-_TAIL_TOKENS:])
        tree = self._trees.get(tail)
        if tree is None:
            if len(self._trees) >= _KNOWN_TAILS:
                self._trees.clear()
            tree = self._trees[tail] = self._build_tree(prompt)
        return tree

    def _build_tree(self, prompt: str) -> LabelTree:
        """Other ways to write the labels count where they take no further request."""
        first, *others = self._tokens_after(prompt)
        ways, tree = [first], self._tree_of([first])
        for other in others:
            with contextlib.suppress(LabelsNotToldApart):
                with_other = self._tree_of([*ways, other])
                if len(with_other.requests) == len(tree.requests):
                    ways, tree = [*ways, other], with_other
        return tree

    def _tree_of(self, ways: Sequence[Sequence[Sequence[int]]]) -> LabelTree:
        """:param ways: the tokens of all labels, each time in another way."""
        of_labels = list(zip(*ways, strict=True))
        return LabelTree.of_labels(of_labels, self._end_tokens, is_exact=self._is_exact)

    def _tokens_after(self, prompt: str) -> list[list[list[int]]]:
        """The tokens of all labels, in each way that the model may write them; first as it would."""
        texts = [
            [lead + text for text in wording] for lead in self._leads(prompt) for wording in self._wordings
        ]
        before, *wholes = self._tokenize([prompt, *(prompt + text for wording in texts for text in wording)])
        of_texts = iter(wholes)
        ways: list[list[list[int]]] = []
        for wording in texts:
            way = list(itertools.islice(of_texts, len(wording)))
            for text, tokens in zip(wording, way, strict=True):
                if tokens[: len(before)] != before or len(tokens) == len(before):
                    if not ways:
                        raise LabelsNotToldApart(f"the choice {text!r} merges into the prompt's last token")
                    break
            else:
                ways.append([tokens[len(before) :] for tokens in way])
        return ways

    def _leads(self, prompt: str) -> list[str]:
        """What may stand before an answer: first what the chat template puts there; and a space, or none,
        unless the prompt ends with white space."""
        if prompt[-1:].isspace() or self._lead not in ("", " "):
            return [self._lead]
        return [self._lead, " " if self._lead == "" else ""]

    def _find_surroundings(self, prompt: str) -> tuple[str, list[int]]:
        """The white space between a prompt and an answer, as the chat template writes it, and the token by
        which it ends an answer."""
        said = {"role": "assistant", "content": _ANSWER}
        try:
            text = self._render([*PROMPT, said], add_generation_prompt=False)
        except Exception:  # templates raise any type
            return "", []
        before, answer, _ = text.rpartition(_ANSWER)
        lead = before.removeprefix(prompt)
        without, whole = self._tokenize([before + answer, text])
        ends = whole[len(without) :][:1] if answer and whole[: len(without)] == without else []
        return lead if lead.isspace() else "", ends


def check_draws_nothing(sampling_params: Mapping[str, Any]) -> None:
    """:raises ValueError: when a row's parameters decide how an answer is drawn."""
    names = sampling_params.keys() - _IGNORED
    if names or sampling_params.get("temperature") not in (None, 0):
        name = min(names, default="temperature")
        raise ValueError(
            f"the row sets sampling_params[{name!r}], and the most probable of the choices is "
            "published without drawing one: set labels.exact=True"
        )
