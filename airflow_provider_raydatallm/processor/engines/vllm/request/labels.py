"""The tokens of a job's labels after a prompt, as the model would write them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.vllm.request.label_tree import (
    LabelsNotToldApart,
    LabelTree,
)
from airflow_provider_raydatallm.processor.request.answers.grammar import check_can_be_written

logger = logging.getLogger(__name__)

#: A label's tokens depend on so many of the prompt's last ones, which the chat template mostly writes.
_TAIL_TOKENS = 2
_KNOWN_TAILS = 1000
_PROMPT = ({"role": "user", "content": "x"},)
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
        self, labels: Sequence[str], render: Render, tokenize: Callable[[Sequence[str]], list[list[int]]]
    ) -> None:
        """
        :raises LabelsNotToldApart: when the model would have to write them.
        :raises SliceError: when the chat template has the model think first.
        """
        self._labels, self._render, self._tokenize = labels, render, tokenize
        self._trees: dict[tuple[int, ...], LabelTree] = {}
        prompt = render(_PROMPT)
        if _THINKS.search(prompt.rstrip()):
            raise SliceError(
                "choices are compared by the first token of an answer, and this model's chat template begins "
                "it with its thinking: turn that off in chat_template_kwargs, or use another model",
                kind="input",
            )
        self._end_tokens = self._find_end_tokens()
        [tokens] = tokenize([prompt])
        #: That a row takes after most prompts.
        self.requests = len(self._tree_after(prompt, tokens).requests)

    @classmethod
    def of_job(
        cls, job: SliceJob, render: Render, tokenize: Callable[[Sequence[str]], list[list[int]]]
    ) -> Labels | None:
        """Returns None where the model writes its choice, by a grammar.

        :raises SliceError: where it would have to, and `labels.confidence` needs the probabilities.
        """
        if not job.compares_labels:
            return None
        assert job.choices is not None
        try:
            labels = cls(job.choices, render, tokenize)
            if labels.requests > 1 and not job.label_confidence:
                raise LabelsNotToldApart(
                    f"their first tokens are shared, and {labels.requests} requests a row cost more"
                )
            return labels
        except LabelsNotToldApart as e:
            if job.label_confidence:
                raise SliceError(
                    f"labels.confidence=True is not possible with this model: {e}. Use choices that begin "
                    "differently, or leave it out",
                    kind="input",
                ) from e
            check_can_be_written(job.choices)
            logger.info("the model writes the choices, by a grammar: %s", e)
            return None

    def after(self, prompt: str, tokens: Sequence[int], sampling_params: Mapping[str, Any]) -> LabelTree:
        """
        :param tokens: of the prompt.
        :param sampling_params: of the row.
        :raises ValueError: when they decide how an answer is drawn, or the labels cannot be told apart after
            this prompt.
        """
        names = sampling_params.keys() - _IGNORED
        if names or sampling_params.get("temperature") not in (None, 0):
            name = min(names, default="temperature")
            raise ValueError(
                f"the row sets sampling_params[{name!r}], and the most probable of the choices is "
                "published without drawing one: set labels.exact=True"
            )
        return self._tree_after(prompt, tokens)

    def _tree_after(self, prompt: str, tokens: Sequence[int]) -> LabelTree:
        tail = tuple(tokens[-_TAIL_TOKENS:])
        tree = self._trees.get(tail)
        if tree is None:
            if len(self._trees) >= _KNOWN_TAILS:
                self._trees.clear()
            tree = self._trees[tail] = LabelTree.of_labels(self._tokens_after(prompt), self._end_tokens)
        return tree

    def _tokens_after(self, prompt: str) -> list[list[int]]:
        before, *texts = self._tokenize([prompt, *(prompt + label for label in self._labels)])
        for label, tokens in zip(self._labels, texts, strict=True):
            if tokens[: len(before)] != before or len(tokens) == len(before):
                raise LabelsNotToldApart(f"the choice {label!r} merges into the prompt's last token")
        return [tokens[len(before) :] for tokens in texts]

    def _find_end_tokens(self) -> list[int]:
        """The token by which the chat template ends an answer."""
        said = {"role": "assistant", "content": _ANSWER}
        try:
            text = self._render([*_PROMPT, said], add_generation_prompt=False)
        except Exception:  # templates raise any type
            return []
        before, answer, _ = text.rpartition(_ANSWER)
        without, whole = self._tokenize([before + answer, text])
        return whole[len(without) :][:1] if answer and whole[: len(without)] == without else []
