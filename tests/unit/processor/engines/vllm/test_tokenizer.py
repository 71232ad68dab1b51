"""What a feeder's tokenizer loads."""

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


def test_tokenizer_loads_without_torch_which_can_be_imported_afterwards() -> None:
    process = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True)
    assert process.stdout.split() == ["AutoTokenizer", "False", "True"], process.stderr[-2000:]
