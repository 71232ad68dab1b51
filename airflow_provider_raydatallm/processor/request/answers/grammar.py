"""Answers that a regular expression or a grammar describes, checked as vLLM's backends read these.

vLLM tries xgrammar first and then llguidance. They read regular expressions differently: classes such as \\w
are of ASCII to xgrammar, whose dot is any character, and of Unicode to llguidance, whose dot is no line feed.
An answer is valid if either takes it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.json_schema import subschemas
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.request.answers.limits.patterns import (
    LimitedPatterns,
    check_pattern,
)
from airflow_provider_raydatallm.processor.request.answers.output_schema import InvalidOutput

#: Keywords with which vLLM does not give a schema to xgrammar, in some places (`backend_xgrammar` there).
_REFUSED_BY_XGRAMMAR = {
    "multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "format", "minLength", "maxLength",
    "patternProperties", "propertyNames",
}  # fmt: skip


class AnswerGrammar:
    """Picklable and thread-safe.

    :raises SliceError: when the regular expression is not valid.
    """

    def __init__(self, *, regex: str | None = None, grammar: str | None = None) -> None:
        self._regex, self._grammar = regex, grammar
        if regex is not None:
            check_pattern("regex is", regex)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._regex, self._grammar)

    def check(self, text: str, *, was_cut: bool) -> None:
        """:param was_cut: whether the engine stopped at a limit: then the answer must be one that no text can
            continue.
        :raises InvalidOutput: when it is not.
        """
        if self._regex is not None and not self._matches_regex(self._regex, text):
            raise InvalidOutput("does not match regex")
        accepts, ends = self._follow(text) if self._regex is None or was_cut else (True, True)
        if self._regex is None and not accepts:
            raise InvalidOutput("does not follow grammar")
        if was_cut and not ends:
            raise InvalidOutput("may not be whole")

    def _matches_regex(self, regex: str, text: str) -> bool:
        self._patterns.start_row()
        try:
            return any(self._patterns.is_whole(regex, text, as_ascii=value) for value in (True, False))
        except TimeoutError as e:
            raise InvalidOutput("takes too long to match regex") from e

    @cached_property
    def _patterns(self) -> LimitedPatterns:
        return LimitedPatterns()

    def _follow(self, text: str) -> tuple[bool, bool]:
        """Whether the text follows the grammar, and whether no text that goes on does. Where llguidance
        cannot tell, the engine kept to the grammar, and the text may go on."""
        matcher = self._matcher
        if matcher is None:
            return True, False
        matcher.reset()
        tokens = _byte_tokenizer().tokenize_bytes(text.encode())
        taken = matcher.try_consume_tokens(tokens)
        if matcher.is_error():  # it is too long for it
            return True, False
        follows = taken == len(tokens) and matcher.is_accepting()
        return follows, follows and matcher.is_stopped()

    @property
    def _matcher(self) -> Any:
        if not hasattr(self._of_thread, "matcher"):
            self._of_thread.matcher = _matcher("regex", self._regex) or _matcher("grammar", self._grammar)
        return self._of_thread.matcher

    @cached_property
    def _of_thread(self) -> threading.local:
        return threading.local()


def _unpickle(regex: str | None, grammar: str | None) -> AnswerGrammar:
    return AnswerGrammar(regex=regex, grammar=grammar)


def _matcher(kind: str, text: str | None) -> Any:
    """Returns None when llguidance is missing, or cannot read it."""
    if text is None:
        return None
    try:
        from llguidance import LLMatcher

        grammar = _llguidance_grammar(kind, text)
        return None if LLMatcher.validate_grammar(grammar) else LLMatcher(_byte_tokenizer(), grammar)
    except (ImportError, ValueError):
        return None


def _llguidance_grammar(kind: Any, text: str, *, lenient: bool = False) -> str:
    from llguidance import LLMatcher, grammar_from

    if kind == "json":
        return str(LLMatcher.grammar_from_json_schema(text, overrides={"lenient": lenient}))
    return str(grammar_from(kind, text))


@cache
def _byte_tokenizer() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def check_compiles(job: SliceJob) -> None:
    """:raises SliceError: when neither of vLLM's backends can compile the shape of the answers, so that each
    row would fail. Where one is not installed here, that is left to the engine.
    """
    task = job.task
    if task.draws and task.labels_of_answers is not None and not job.compares_labels:
        check_can_be_written(task.labels_of_answers)
    name = next(iter(set(task.shapes) - {"choices"}), None)
    if name is None or "structured_outputs_config" in job.engine.arguments:
        return
    if name == "output_schema":
        schema = job.task_as(Generate).output_schema or {}
        kind, text = "json", json.dumps(schema)
        keywords = {keyword for part in subschemas(schema) for keyword in part}
        if not keywords & _REFUSED_BY_XGRAMMAR and not _problem_of_llguidance(kind, text, lenient=True):
            return  # at least xgrammar compiles it, without the keywords that it does not know
    else:
        kind, text = name, getattr(task, name)
    if problem := _problem_of_llguidance(kind, text):
        with contextlib.suppress(ImportError):
            # Importing it takes seconds, and few shapes get here.
            if xgrammar_problem := _problem_of_xgrammar(kind, text):
                raise SliceError(
                    f"{name} cannot be compiled by vLLM: {xgrammar_problem} (xgrammar); {problem} "
                    "(llguidance)",
                    kind="input",
                    advice="Simplify it",
                )


def check_can_be_written(choices: Sequence[str]) -> None:
    """:raises SliceError: when vLLM cannot make a grammar of the choices: it does not escape these."""
    if broken := [choice for choice in choices if any(character in choice for character in "\n\r\0")]:
        raise SliceError(
            f"choices has {broken[0]!r:.200}, and vLLM cannot have a model write a label with a line break "
            "or a NUL",
            kind="input",
            advice="Leave it out of the label, such as by a space in its place",
        )


def _problem_of_llguidance(kind: str, text: str, *, lenient: bool = False) -> str | None:
    try:
        from llguidance import LLMatcher

        return _brief(LLMatcher.validate_grammar(_llguidance_grammar(kind, text, lenient=lenient))) or None
    except ImportError:
        return None
    except ValueError as e:
        return _brief(str(e))


def _problem_of_xgrammar(kind: str, text: str) -> str | None:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    try:
        params: Any = SamplingParams(structured_outputs=StructuredOutputsParams(**{kind: text}))
        validate_xgrammar_grammar(params)
    except Exception as e:  # vLLM's own types
        return _brief(f"{e}{f': {e.__cause__}' if e.__cause__ else ''}")
    return None


def _brief(message: str) -> str:
    return " ".join(message.split())[:300]
