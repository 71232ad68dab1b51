"""What a feeder's tokenizer loads, and that its faster way makes the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from benchmarks.model_folder import write_model_folder
from tests.support.in_process import job_of

_LOAD = """
import importlib.util, sys
from airflow_provider_raydatallm.processor.engines.vllm.request.text_tokenizer import _without_torch
with _without_torch():
    from transformers import AutoTokenizer
print(AutoTokenizer.__name__, "torch" in sys.modules, importlib.util.find_spec("torch") is not None)
"""


@pytest.mark.slow
def test_tokenizer_loads_without_torch_which_can_be_imported_afterwards() -> None:
    process = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True)
    assert process.stdout.split() == ["AutoTokenizer", "False", "True"], process.stderr[-2000:]


def test_tokens_are_those_of_the_tokenizers_own_call_whatever_its_file_cuts_or_pads(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = write_model_folder(tmp_path / "model")
    saved = json.loads((model / "tokenizer.json").read_text())
    saved["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    saved["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|end|>",
    }  # fmt: skip
    (model / "tokenizer.json").write_text(json.dumps(saved))
    texts = ["", "a long text of words", "<|user|>x<|end|>", "\x00 \U0001f600 \u4e2d\u6587", "\n\n  tabs\t"]
    requests = [
        json.dumps({"messages": [{"role": "user", "content": text}], "sampling_params": {}, "cells": [[]]})
        for text in texts
    ]
    own = AutoTokenizer.from_pretrained(str(model))
    tokenized = PromptTokenizer(job_of(input_path="/i", output_path="/o", model_source=str(model)))(requests)
    assert [list(t.tokens) for t in tokenized] == [
        own(f"<|user|>{text}<|assistant|>", add_special_tokens=False)["input_ids"] for text in texts
    ]


def test_request_names_its_adapter_to_the_worker_and_keeps_its_parameters(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model")
    messages = [{"role": "user", "content": "a word"}]
    of_model = {"messages": messages, "sampling_params": {"max_tokens": 3}}
    of_adapter = {"adapter": "ab", **of_model}
    tokenizer = PromptTokenizer(job_of(input_path="/i", output_path="/o", model_source=str(model)))
    plain, adapted = tokenizer([json.dumps(of_model), json.dumps(of_adapter)])
    assert (plain.adapter, json.loads(plain.params)) == ("", {"max_tokens": 3})
    assert (adapted.adapter, json.loads(adapted.params)) == ("ab", {"adapter": "ab", "max_tokens": 3})
    assert (adapted.tokens, adapted.total_tokens) == (plain.tokens, plain.total_tokens)


@pytest.mark.parametrize("limit", [None, 12])
def test_request_says_how_long_its_answer_may_be_also_where_it_is_cut(
    tmp_path: Path, limit: int | None
) -> None:
    model = write_model_folder(tmp_path / "model")
    job = job_of(input_path="/i", output_path="/o", model_source=str(model))
    messages = [{"role": "user", "content": "a word " * 20}]
    row = json.dumps({"messages": messages, "sampling_params": {"max_tokens": 3}})
    [request] = PromptTokenizer(job, limit)([row])
    assert (request.error, request.shortened, request.max_tokens) == (None, limit is not None, 3)
    assert request.total_tokens == len(request.tokens) + 3
    assert limit is None or request.total_tokens <= limit
