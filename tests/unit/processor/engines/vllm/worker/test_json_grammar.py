"""Grammars of JSON answers, followed by the backends of vLLM themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.v1.core.sched.utils import check_sequence_repetition

from airflow_provider_raydatallm.processor.engines.vllm.worker.json_grammar import REPETITION, bound
from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import _parse_request

NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
# vLLM gives no schema with multipleOf to xgrammar.
EVEN = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}}, "required": ["a"]}
COMPACT = '{"a": 12}'
LOOSE = '{ "a" :\n  12 }'
ENDLESS = '{"a": ' + " " * 40 + "12}"


def takes(shape: Mapping[str, Any], text: str) -> bool:
    if "grammar" in shape:
        import xgrammar

        characters = ["", *map(chr, range(9, 127))]
        vocabulary = xgrammar.TokenizerInfo(characters, stop_token_ids=[0])
        matcher = xgrammar.GrammarMatcher(
            xgrammar.GrammarCompiler(vocabulary).compile_grammar(shape["grammar"])
        )
        return matcher.accept_string(text) and matcher.accept_token(0)
    from llguidance import LLMatcher, LLTokenizer

    free = {"whitespace_flexible": True}  # as vLLM asks for
    grammar = LLMatcher.grammar_from_json_schema(shape["json"], defaults=free)
    tokenizer = LLTokenizer("byte")
    guidance = LLMatcher(tokenizer, grammar)
    tokens = tokenizer.tokenize_bytes(text.encode())
    return guidance.try_consume_tokens(tokens) == len(tokens) and guidance.is_accepting()


def bounded(schema: Mapping[str, Any], *, is_compact: bool) -> Mapping[str, Any]:
    return bound({}, {"json": json.dumps(schema), "disable_any_whitespace": is_compact})


@pytest.mark.parametrize(
    ("is_compact", "taken"), [(True, [True, False, False]), (False, [True, True, False])]
)
def test_whitespace_is_forbidden_or_bounded(is_compact: bool, taken: list[bool]) -> None:
    shape = bounded(NUMBER, is_compact=is_compact)
    assert [takes(shape, text) for text in (COMPACT, LOOSE, ENDLESS)] == taken


def test_llguidance_writes_what_xgrammar_does_not_know() -> None:
    shape = bounded(EVEN, is_compact=True)
    assert "json" in shape
    assert [takes(shape, text) for text in (COMPACT, LOOSE, '{"a": 13}')] == [True, False, False]
    assert takes(bounded(EVEN, is_compact=False), LOOSE)


def test_whitespace_inside_a_string_is_the_models_own() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    assert takes(bounded(schema, is_compact=True), json.dumps({"a": "b" + " " * 100 + "c"}))


def test_schema_that_names_no_bound_is_left_as_it_is() -> None:
    shape = {"json": json.dumps(NUMBER)}
    assert bound({}, shape) is shape


@pytest.mark.parametrize(
    ("piece", "times", "ends"),
    [(1, 150, True), (2, 75, True), (3, 50, True), (4, 40, True), (8, 20, True), (12, 13, True),
     (2, 60, False), (4, 31, False), (12, 10, False), (24, 5, False)],
)  # fmt: skip
def test_few_tokens_over_and_over_end_an_answer(piece: int, times: int, ends: bool) -> None:
    """A number for each day of a month does not."""
    tokens = [*range(100, 140), *[*range(piece)] * times]
    assert check_sequence_repetition(tokens, RepetitionDetectionParams(**REPETITION)) is ends


@pytest.mark.parametrize("part", [
    {"type": "string"}, {"type": "string", "maxLength": 500}, {"type": "array", "items": {"type": "number"}},
])  # fmt: skip
def test_repetition_ends_an_answer(part: Mapping[str, Any]) -> None:
    assert _params(part).repetition_detection is not None


@pytest.mark.parametrize("part", [
    {"const": " " * 60}, {"enum": ["a", "=" * 60]}, {"type": "string", "minLength": 60},
    {"type": "string", "pattern": "^a{60}$"}, {"type": "array", "items": {"type": "number"}, "minItems": 8},
])  # fmt: skip
def test_schema_may_demand_repetition(part: Mapping[str, Any]) -> None:
    assert _params(part).repetition_detection is None


def test_row_says_how_much_repetition_is_too_much() -> None:
    own = {**REPETITION, "min_count": 5}
    detection: Any = _params({"type": "string"}, repetition_detection=own).repetition_detection
    assert detection.min_count == 5
    assert _params({"type": "string"}, repetition_detection=None).repetition_detection is None


def _params(part: Mapping[str, Any], **params: Any) -> SamplingParams:
    schema = json.dumps({"type": "object", "properties": {"a": part}, "required": ["a"]})
    shape = {"json": schema, "disable_any_whitespace": True}
    request: Any = _parse_request(json.dumps({**params, "structured_outputs": shape}), False)[0]
    return request.params
