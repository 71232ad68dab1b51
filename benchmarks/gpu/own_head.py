"""A Ray head of its own for a case, and slices that run on it as Ray jobs do: processes of the processor."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HEAD_SECONDS = 20


@contextlib.contextmanager
def own_head() -> Iterator[Path]:
    """Yields a folder for the case."""
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": f"127.0.0.1:{port}"}
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
        head = subprocess.Popen(
            [*start, "--num-cpus=16", "--include-dashboard=false", f"--temp-dir={folder}/ray"]
        )
        try:
            time.sleep(HEAD_SECONDS)
            yield Path(folder)
        finally:
            head.terminate()
            head.wait()


def run_slice(job: Mapping[str, Any], spec: Path) -> dict[str, Any]:
    """Returns its report.

    :param spec: the file that it is written to.
    """
    spec.write_text(json.dumps(job))
    processor = subprocess.run(
        [sys.executable, "-m", "airflow_provider_raydatallm.processor", "run", str(spec), "--json"],
        capture_output=True,
        text=True,
    )
    if processor.returncode:
        raise SystemExit(f"{spec.name}: {processor.stderr[-3000:]}")
    report: dict[str, Any] = json.loads(processor.stdout[processor.stdout.index("{\n") :])
    return report
