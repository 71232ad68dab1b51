"""What is asked of a model, and the arguments that go with it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.spec.engines.base import Capabilities
from tests.support.slice_jobs import refusal, slice_job

LABELS = ("a", "b")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task": "embed", "choices": LABELS}, "choices is for task='generate' or 'classify', and"),
        ({"task": "embed", "sampling_params": {"temperature": 0}}, "sampling_params is for task='generate'"),
        ({"task": "embed", "system_prompt": "s"}, "system_prompt is for"),
        ({"task": "embed", "postprocess": "m:f"}, "postprocess is for"),
        ({"task": "embed", "engine": "ray_data_llm"}, "task='embed' is for engine 'vllm' or 'http'"),
        ({"task": "embed", "model_source": "s3://b/m"}, "task='embed' is for engine 'vllm' or 'http'"),
        ({"task": "embed", "embedding__dtype": "int4"}, "'float32', 'float16' or 'int8'"),
        ({"embedding__dimensions": 8}, "embedding is for task='embed', and task is 'generate'"),
        ({"embedding__normalize": False}, "embedding is for"),
        ({"task": "classify", "regex": "x"}, "regex is for task='generate', and task is 'classify'"),
        ({"task": "classify", "labels__exact": True}, r"labels\.exact is for task='generate'"),
        (
            {"task": "classify", "choices": LABELS, "quality__repair": 1},
            r"quality\.repair is for task='generate'",
        ),
        ({"task": "classify", "engine": "http", "engine__url": "https://h/v1"}, "is for engine 'vllm'"),
        ({"task": "score"}, "give query and prompt"),
        ({"task": "score", "query": "{q}", "prompt": None, "preprocess": "m:f"}, "preprocess is for"),
        ({"task": "score", "query": "{q}", "embedding__dtype": "float16"}, "embedding is for"),
        ({"query": "{q}"}, "query is for task='score', and task is 'generate'"),
        ({"labels__confidence": True}, r"labels\.confidence=True needs choices"),
        ({"labels__exact": True}, r"labels\.exact=True needs choices"),
        ({"choices": LABELS, "labels__confidence": True, "labels__exact": True}, "has the model write them"),
        ({"choices": LABELS, "labels__confidence": True, "engine": "ray_data_llm"}, "not say how probable"),
        ({"choices": LABELS, "labels__confidence": True, "sampling_params": {"temperature": 1}}, "at random"),
        ({"choices": LABELS, "labels__confidence": True, "sampling_params": {"top_p": 0.5}}, r"\['top_p'\]"),
        ({"labels__multi": True}, r"labels\.multi=True needs choices"),
        ({"choices": LABELS, "labels__multi": True, "labels__exact": True}, "has the model write them"),
        (
            {"choices": LABELS, "labels__multi": True, "engine": "http", "engine__url": "https://h/v1"},
            r"labels\.multi=True is not possible: engine 'http' .*, as 'vllm' does",
        ),
        ({"choices": LABELS, "labels__multi": True, "engine": "m:Mine"}, "engine 'm:Mine' does not say"),
        ({"choices": LABELS, "labels__multi": True, "sampling_params": {"n": 2}}, "choices a row has one"),
        (
            {"choices": LABELS, "labels__multi": True, "output_schema": {"type": "object"}},
            "exclude each other",
        ),
        (
            {"choices": LABELS, "labels__multi": True, "task": "classify"},
            r"labels\.multi is for task='generate'",
        ),
        ({"choices": LABELS, "labels__multi": True, "logprobs": True}, r"set labels\.confidence=True"),
    ],
)
def test_arguments_that_exclude_each_other(given: dict[str, Any], says: str) -> None:
    assert re.search(says, refusal(**given))


@pytest.mark.parametrize(
    ("given", "are_compared"),
    [
        ({}, True),
        ({"sampling_params": {"temperature": 0, "max_tokens": 8, "seed": 1}}, True),
        ({"labels__exact": True}, False),
        ({"engine": "ray_data_llm"}, False),
        ({"engine": "m:Mine"}, False),
        ({"sampling_params": {"temperature": 0.2}}, False),
        ({"sampling_params": {"temperature": "{t}"}}, False),
        ({"sampling_params": {"logit_bias": {"1": 2}}}, False),
        ({"engine__processor": {"x": 1}}, False),
        ({"engine__kwargs": {"speculative_config": {"method": "ngram"}}}, False),
        ({"engine": "http", "engine__url": "https://h/v1"}, False),
    ],
)
def test_labels_are_compared_where_the_most_probable_one_is_asked_for(
    given: dict[str, Any], are_compared: bool
) -> None:
    assert slice_job(choices=LABELS, **given).compares_labels is are_compared


def test_engine_follows_only_what_is_known() -> None:
    with pytest.raises(ValueError, match="imagse"):
        Capabilities("m:E", tasks=None, follows=frozenset({"imagse"}))
    assert Capabilities("m:E", tasks=None).follows == frozenset()
