"""Reasoning told from answers by vLLM's own parsers, and which of them there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.reasoning import check_reasoning_parser
from benchmarks.model_folder import write_model_folder
from tests.support.in_process import job_of
from tests.support.paths import ROOT

#: In a process of its own: vLLM takes long to import, and changes the logging of whoever does it.
_SPLIT = """
import json, sys
from transformers import AutoTokenizer
from airflow_provider_raydatallm.processor.engines.vllm.reasoning import ReasoningSplitter

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
splits = {}
for name in ("deepseek_r1", "qwen3"):
    splitter = ReasoningSplitter(name, tokenizer)
    for text, template, is_shaped in json.loads(sys.argv[2]):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        split = splitter.split(text, tokens, template, is_shaped=is_shaped)
        of_answer = len(tokenizer.encode(split.text or "", add_special_tokens=False))
        are_all = len(tokens) - of_answer == split.tokens
        splits.setdefault(name, []).append([split.reasoning, split.text, are_all])
print(json.dumps(splits))
"""


@pytest.mark.slow
def test_parsers_of_vllm_split_whole_and_cut_texts(tmp_path: Path) -> None:
    texts = [
        ("<think>\nHm, a bank.\n</think>Bank", {}, False),
        ("Hm, a bank.</think>\n\nBank", {}, True),
        ("Hm, a ba", {}, False),
        ("Hm.</think>", {}, False),
    ]
    model = write_model_folder(tmp_path / "model")
    command = [sys.executable, "-c", _SPLIT, str(model), json.dumps(texts)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [
        ["Hm, a bank.", "Bank", True], ["Hm, a bank.", "\n\nBank", True], ["Hm, a ba", None, True],
        ["Hm.", None, True],
    ]  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == {"deepseek_r1": expected, "qwen3": expected}


def test_unknown_parser_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SliceError, match=r"'deepseek-r1'.*Did you mean "):
        check_reasoning_parser(job_of(input_path="/i", output_path="/o", reasoning_parser="deepseek-r1"))
    with pytest.raises(SliceError, match=r"It has .*qwen3"):
        check_reasoning_parser(job_of(input_path="/i", output_path="/o", reasoning_parser="???"))


def test_known_parser_and_one_of_a_plugin_pass() -> None:
    check_reasoning_parser(job_of(input_path="/i", output_path="/o", reasoning_parser="qwen3"))
    plugin = {"reasoning_parser_plugin": "/mine.py"}
    check_reasoning_parser(
        job_of(input_path="/i", output_path="/o", reasoning_parser="mine", engine__kwargs=plugin)
    )
