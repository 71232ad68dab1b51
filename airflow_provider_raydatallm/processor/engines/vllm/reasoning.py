"""What a model thinks before it answers, told from its answer by vLLM's parsers.

A slice's process checks the parser's name in vLLM's source, without importing it; the worker, which has vLLM
and the tokenizer, runs the parser.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.engines.vllm.arguments import constant_of_vllm

if TYPE_CHECKING:
    from vllm.reasoning import ReasoningParser

_PARSERS = ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER")


def reasoning_parser(job: SliceJob) -> str | None:
    """Returns the name of the job's parser."""
    return job.task.reasoning_parser if isinstance(job.task, Generate) else None


def check_reasoning_parser(job: SliceJob) -> None:
    """:raises SliceError: when the installed vLLM has no such parser; names the nearest one."""
    name, known = reasoning_parser(job), constant_of_vllm(*_PARSERS)
    if name is None or not known or name in known or "reasoning_parser_plugin" in job.engine.arguments:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"It has {', '.join(sorted(known))}"
    raise SliceError(
        f"reasoning_parser is {name!r}, which the cluster's vLLM does not have", kind="input", advice=hint
    )


class Split(NamedTuple):
    """`tokens` counts those of the reasoning, and of the marks around it."""

    reasoning: str | None
    text: str | None
    tokens: int


class ReasoningSplitter:
    def __init__(self, name: str, tokenizer: Any) -> None:
        """
        :param name: of the parser.
        :param tokenizer: vLLM's own.
        """
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.reasoning import ReasoningParserManager

        self._class: type[ReasoningParser] = ReasoningParserManager.get_reasoning_parser(name)
        self._tokenizer = tokenizer
        self._request = ChatCompletionRequest(messages=[], model="")
        #: Whether a text must hold the model's control tokens, by which the parser finds its way.
        self.shows_control_tokens = not (
            self._class(tokenizer).adjust_request(self._request.model_copy()).skip_special_tokens
        )

    def split(
        self, text: str, tokens: Sequence[int], template: Mapping[str, Any], *, is_shaped: bool
    ) -> Split:
        """
        :param template: arguments of the chat template, by which some parsers know whether the model thinks.
        :param is_shaped: whether a grammar holds for the answer: then nothing is cut off it.
        """
        parser = self._class(self._tokenizer, chat_template_kwargs=template)  # some keep a state
        reasoning, answer = parser.extract_reasoning(text, self._request)
        if answer is not None and not is_shaped:
            answer = answer.lstrip("\n")  # templates put the answer into a paragraph of its own
        if reasoning is None:
            return Split(None, answer, 0)
        # A text that was cut before its answer is all thought.
        of_answer = len(parser.extract_content_ids(list(tokens))) if answer else 0
        return Split(reasoning.strip("\n"), answer or None, len(tokens) - of_answer)
