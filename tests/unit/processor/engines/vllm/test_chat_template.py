"""A job's own chat template is compiled before an engine starts, and tells the model of tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.chat_template import check_chat_template
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from benchmarks.model_folder import write_model_folder
from tests.support.in_process import job_of

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% if loop.last %}{% break %}"
    "{% endif %}{% endfor %}{% for tool in tools %}({{ tool.function.name }}){% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "lookup"}}


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for message in messages %}", "line 1: Unexpected end of template"),
        ("\n{{ messages | shout }}", "line 2: No filter named 'shout'"),
    ],
)
def test_template_that_cannot_be_compiled_is_refused_with_its_line(template: str, says: str) -> None:
    with pytest.raises(SliceError, match=says):
        check_chat_template(job_of(input_path="/i", output_path="/o", chat_template=template))


def test_template_may_use_what_transformers_adds() -> None:
    template = "{%- generation %}{{ messages }}{% endgeneration -%}{{ strftime_now('%Y') }}" + TEMPLATE
    check_chat_template(job_of(input_path="/i", output_path="/o", chat_template=template))


def test_prompt_is_of_the_jobs_template_with_its_tools(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model")
    job = job_of(
        input_path="/i", output_path="/o", model_source=str(model), chat_template=TEMPLATE, tools=[TOOL]
    )
    tokenizer = PromptTokenizer(job)
    request = {"messages": [{"role": "user", "content": "Hi"}], "sampling_params": {}, "cells": [None]}
    [tokenized] = tokenizer([json.dumps(request)])
    assert tokenizer._tokenizer.decode(tokenized.tokens) == "[user]Hi(lookup)"
