"""vLLM's own server of OpenAI's API, on CPUs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_for

#: It imports torch and compiles on a busy machine.
_START_SECONDS = 300
NAME = "tiny"


@contextmanager
def vllm_server(model: Path, max_model_len: int) -> Iterator[str]:
    """Serves a model under `NAME`. Yields the base address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--enforce-eager",
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME,
        "--max-model-len", str(max_model_len),
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

        def is_up() -> bool:
            if process.poll() is not None:
                log.seek(0)
                raise AssertionError(log.read().decode(errors="replace")[-3000:])
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                return True
            except OSError:
                return False

        try:
            wait_for(is_up, _START_SECONDS)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(60)
