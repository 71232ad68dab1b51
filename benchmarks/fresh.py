"""Runs a function of a case in a new Python process, so that time and memory are its own only."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Fresh:
    """`seconds` from the start of Python to its end; `peak_mb` of resident memory."""

    result: Any
    seconds: float
    peak_mb: float


def fresh(function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None) -> Fresh:
    """Runs a module's function in a new process; arguments and result travel as JSON."""
    with tempfile.NamedTemporaryFile("r", prefix="rb-result-") as file:
        began = time.monotonic()
        target = f"{function.__module__}:{function.__name__}"
        command = [sys.executable, "-m", "benchmarks.fresh", target, file.name, json.dumps(arguments)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, check=True)
        seconds = time.monotonic() - began
        output = json.load(file)
    return Fresh(output["result"], seconds, output["peak_mb"])


def resident_mb(peak: bool = False) -> float:
    """Returns this process's resident memory, now or at its peak.

    Not by `getrusage`: a process inherits the peak of its parent.
    """
    name = "VmHWM:" if peak else "VmRSS:"
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(name)) / 1024


def _main() -> None:
    target, file, arguments = sys.argv[1:]
    module, _, name = target.partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    Path(file).write_text(json.dumps({"result": result, "peak_mb": resident_mb(peak=True)}))
    if threading.active_count() > 1:  # of a run that was cut short
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    _main()
