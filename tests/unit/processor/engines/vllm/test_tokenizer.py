"""What a feeder loads to make token ids of requests."""

from __future__ import annotations

import subprocess
import sys

_LOAD = """
import importlib.util, sys
from airflow_provider_raydatallm.processor.engines.vllm.tokenizer import _without_torch
with _without_torch():
    from transformers import AutoTokenizer
print(AutoTokenizer.__name__, "torch" in sys.modules, importlib.util.find_spec("torch") is not None)
"""


def test_tokenizers_are_loaded_without_torch_which_is_there_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True)
    assert done.stdout.split() == ["AutoTokenizer", "False", "True"], done.stderr[-2000:]
