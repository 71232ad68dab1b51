"""Several labels a row: a question about each, which the model answers with yes or no.

A question follows the last message, so that all questions about a row share its prompt, which vLLM computes
once. Its tokens, and those of what the chat template puts after it, are the same for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.tasks.generate import LABEL_QUESTION
from airflow_provider_raydatallm.processor.engines.vllm.request.labels.labels import (
    PROMPT,
    Labels,
    Render,
    check_draws_nothing,
)
from airflow_provider_raydatallm.processor.engines.vllm.request.labels.tree import (
    LabelsNotToldApart,
    LabelTree,
)

#: Here case means nothing.
_ANSWERS = (("Yes", "No"), ("yes", "no"))
#: Where a question would begin; in no row's text.
_HERE = "q7d1e90b5c"


class LabelQuestions:
    """Thread-safe."""

    def __init__(
        self, labels: Sequence[str], render: Render, tokenize: Callable[[Sequence[str]], list[list[int]]]
    ) -> None:
        """:raises SliceError: when the model cannot be asked so, or its chat template has it think first."""
        self._render = render
        try:
            before, self._after = self._split(PROMPT)
            texts = [before + LABEL_QUESTION.format(label=label) + self._after for label in labels]
            of_before, *wholes = tokenize([before, *texts])
            if any(tokens[: len(of_before)] != of_before for tokens in wholes):
                raise LabelsNotToldApart("a question merges into the tokens before it")
            answers = Labels(_ANSWERS, render, tokenize, is_exact=True).tree_after(texts[0], wholes[0])
        except ValueError as e:
            raise SliceError(
                f"labels.multi=True is not possible with this model: {e}",
                kind="input",
                advice="Use another one",
            ) from e
        self._tree = LabelTree.of_questions([tokens[len(of_before) :] for tokens in wholes], answers)

    def text_before(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Returns a row's prompt up to where the questions follow.

        :raises ValueError: when none can follow.
        """
        before, after = self._split(messages)
        if after != self._after:
            raise ValueError(
                "the chat template puts something of the row after its last message, where labels.multi "
                "asks: give a chat_template that does not"
            )
        return before

    def after(self, prompt: str, tokens: Sequence[int], sampling_params: Mapping[str, Any]) -> LabelTree:
        """:raises ValueError: when a row's sampling parameters decide how an answer is drawn."""
        check_draws_nothing(sampling_params)
        return self._tree

    def _split(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        *others, last = messages
        if last["role"] != "user":
            raise ValueError(
                f"the row's last message is of the role {last['role']!r}, and labels.multi asks in the user's"
            )
        text = self._render([*others, {**last, "content": f"{last['content']}{_HERE}"}])
        before, here, after = text.rpartition(_HERE)
        if not here:
            raise ValueError("the chat template leaves the last message out, where labels.multi asks")
        return before, after
