"""Conversations, several answers a row, reasoning and tools: what excludes each other, by which engines."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.slice_jobs import refusal, slice_job

HTTP = {"engine": "http", "engine__url": "https://h/v1"}
TWO = {"sampling_params": {"n": 2}}
LABELS = {"choices": ["a", "b"]}
TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"output_schema": {"properties": {}}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"messages": "talk"}, "prompt and messages both build the request"),
        ({"prompt": None, "messages": "talk", "preprocess": "m:f"}, "messages and preprocess both build"),
        ({"task": "embed", "prompt": None, "messages": "talk"}, "messages is for task='generate'"),
        ({"task": "embed", "logprobs": True}, "logprobs is for task='generate'"),
        ({"sampling_params": {"n": 0.5}}, r"sampling_params\['n'\] is 0.5: give a number of answers"),
        ({"sampling_params": {"n": "{n}"}}, r"is '{n}': give a number of answers"),
        ({"sampling_params": {"n": 2, "temperature": "0"}}, "with temperature 0 all 2 answers are equal"),
        ({**TWO, **LABELS}, r"\['n'\] is 2, and with choices a row has one answer: .*labels.confidence"),
        ({**TWO, **SCHEMA, "output_mode": "columns"}, "output_mode='columns' takes one answer"),
        ({**TWO, **SCHEMA, "quality__repair": 1}, r"quality.repair goes on with a row's answer"),
        (
            {**TWO, "engine": "ray_data_llm"},
            r"\['n'\] is for engine 'vllm' or 'http', and this slice's is 'ray_data_llm'",
        ),
        (
            {**LABELS, "logprobs": True},
            "choices are compared: set labels.confidence=True, or labels.exact=True",
        ),
        ({"logprobs": True, "engine": "ray_data_llm"}, "logprobs is for engine 'vllm'"),
        ({"reasoning_parser": "qwen3", **HTTP}, "reasoning_parser is for engine 'vllm', .* 'http'"),
        ({"reasoning_parser": "qwen3", "engine": "ray_data_llm"}, "reasoning_parser is for engine 'vllm'"),
        ({"engine__kwargs": {"reasoning_parser": "qwen3"}}, "give it as reasoning_parser"),
        ({"sampling_params": {"thinking_token_budget": 9}}, "needs reasoning_parser"),
        ({**LABELS, "labels__confidence": True, "reasoning_parser": "qwen3"}, "has the model think before"),
        ({"chat_template": "chatml.jinja"}, "'chatml.jinja' does not use messages, .* not its name"),
        ({"chat_template": "{{ messages }}", **HTTP}, "chat_template is for engine 'vllm'"),
        ({"tools": []}, "tools"),
        ({"tools": [{"name": "f"}]}, "is not a tool as OpenAI describes them"),
        ({"tools": [TOOL], "engine": "ray_data_llm"}, "tools is for engine 'vllm'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    assert re.search(says, refusal(**given))


@pytest.mark.parametrize(
    "given",
    [
        {**TWO, **SCHEMA, "postprocess": "m:f", "logprobs": True, **HTTP},
        {"tools": [TOOL], "engine": "http", "engine__url": "https://h/v1"},
        {"sampling_params": {"thinking_token_budget": 9}, **HTTP},
        {"engine__kwargs": {"reasoning_parser": "qwen3"}, "engine": "ray_data_llm"},
        {"sampling_params": {"n": None}},
        {**LABELS, "labels__exact": True, "logprobs": True},
    ],
)
def test_what_works_together_is_accepted(given: dict[str, Any]) -> None:
    slice_job(**given)


def test_model_that_thinks_first_writes_its_label() -> None:
    assert not slice_job(**LABELS, reasoning_parser="qwen3").compares_labels
