"""What is asked of a model, and the arguments that go with it."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

BASE = {
    "slice_key": "k", "input_path": "/in", "output_path": "/out", "model_source": "m", "prompt": "{a}",
}  # fmt: skip
LABELS = ("a", "b")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"task": "embed", "choices": LABELS},
            "choices is for task='generate' or 'classify', and",
        ),
        ({"task": "embed", "sampling_params": {"temperature": 0}}, "sampling_params is for task='generate'"),
        ({"task": "embed", "system_prompt": "s"}, "system_prompt is for"),
        ({"task": "embed", "postprocess": "m:f"}, "postprocess is for"),
        ({"task": "embed", "engine": "ray_data_llm"}, "is for engine 'http' or 'vllm'"),
        ({"task": "embed", "model_source": "s3://b/m"}, "is for engine 'http' or 'vllm'"),
        ({"task": "embed", "embedding_dtype": "int4"}, "'float32', 'float16' or 'int8'"),
        ({"embedding_dimensions": 8}, r"embedding\.dimensions is for task='embed'"),
        ({"embedding_normalize": False}, r"embedding\.normalize is for"),
        ({"task": "classify", "regex": "x"}, "regex is for task='generate', and task is 'classify'"),
        ({"task": "classify", "exact_labels": True}, r"labels\.exact is for task='generate'"),
        ({"task": "classify", "choices": LABELS, "repair": 1}, r"quality\.repair is for task='generate'"),
        ({"task": "classify", "engine": "http", "endpoint_url": "https://h/v1"}, "is for engine 'vllm'"),
        ({"task": "score"}, "give query and prompt"),
        ({"task": "score", "query": "{q}", "prompt": None, "preprocess": "m:f"}, "give query and prompt"),
        ({"task": "score", "query": "{q}", "embedding_dtype": "float16"}, r"embedding\.dtype is for"),
        ({"query": "{q}"}, "query is for task='score', and task is 'generate'"),
        ({"label_confidence": True}, r"labels\.confidence=True needs choices"),
        ({"exact_labels": True}, r"labels\.exact=True needs choices"),
        ({"choices": LABELS, "label_confidence": True, "exact_labels": True}, "has the model write them"),
        ({"choices": LABELS, "label_confidence": True, "engine": "ray_data_llm"}, "is for engine 'vllm'"),
        ({"choices": LABELS, "label_confidence": True, "sampling_params": {"temperature": 1}}, "at random"),
        ({"choices": LABELS, "label_confidence": True, "sampling_params": {"top_p": 0.5}}, r"\['top_p'\]"),
        ({"multi_label": True}, r"labels\.multi=True needs choices"),
        ({"choices": LABELS, "multi_label": True, "exact_labels": True}, "has the model write them"),
        (
            {"choices": LABELS, "multi_label": True, "engine": "http", "endpoint_url": "https://h/v1"},
            r"labels\.multi=True is not possible: it is for engine 'vllm'",
        ),
        ({"choices": LABELS, "multi_label": True, "engine": "m:Mine"}, "is for engine 'vllm'"),
        ({"choices": LABELS, "multi_label": True, "sampling_params": {"n": 2}}, "with choices a row has one"),
        ({"choices": LABELS, "multi_label": True, "output_schema": {"type": "object"}}, "exclude each other"),
        (
            {"choices": LABELS, "multi_label": True, "task": "classify"},
            r"labels\.multi is for task='generate'",
        ),
        ({"choices": LABELS, "multi_label": True, "logprobs": True}, r"set labels\.confidence=True"),
    ],
)
def test_arguments_that_exclude_each_other(given: dict[str, Any], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=says):
        SliceJob(**{**BASE, **given})


@pytest.mark.parametrize(
    ("given", "are_compared"),
    [
        ({}, True),
        ({"sampling_params": {"temperature": 0, "max_tokens": 8, "seed": 1}}, True),
        ({"exact_labels": True}, False),
        ({"engine": "ray_data_llm"}, False),
        ({"engine": "m:Mine"}, False),
        ({"sampling_params": {"temperature": 0.2}}, False),
        ({"sampling_params": {"temperature": "{t}"}}, False),
        ({"sampling_params": {"logit_bias": {"1": 2}}}, False),
        ({"processor_kwargs": {"x": 1}}, False),
        ({"engine_kwargs": {"speculative_config": {"method": "ngram"}}}, False),
        ({"engine": "http", "endpoint_url": "https://h/v1"}, False),
    ],
)
def test_labels_are_compared_where_the_most_probable_one_is_asked_for(
    given: dict[str, Any], are_compared: bool
) -> None:
    assert SliceJob(**{**BASE, "choices": LABELS, **given}).compares_labels is are_compared
