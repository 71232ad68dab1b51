"""The same rows by the provider's engine and by other tools, on CPUs with the demo's tiny model.

Goals for rows per second while the engine answers: short rows at least 1.0 times vLLM's offline `LLM.chat`,
mixed rows at least 1.05 times, rows with shared prefixes at least 1.3 times plain Ray Data LLM tuned by hand.
`benchmarks.gpu.compare` does the work, each line in its own process; it measures GPUs too. Daft is installed
into a folder of its own; without a network its line is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from airflow_provider_raydatallm.processor.engines.vllm.engine_base import CPU_ENV
from benchmarks.fresh import ROOT
from benchmarks.table import print_rows, say

_ROWS = int(os.environ.get("BENCH_PEERS_ROWS", 2000))
#: A row with a long prefix and a long answer takes as long as several others.
ROWS = {"short": _ROWS, "mixed": _ROWS, "prefix": _ROWS // 2}
#: Modes for each kind of rows: all of them would take too long. Daft supports one answer length only.
WORK = {
    "short": ("chat", "plain", "tuned", "daft", "vllm"),
    "mixed": ("chat", "vllm"),
    "prefix": ("tuned", "vllm"),
}
#: The peer of each kind of rows, and the lowest acceptable ratio of `vllm` to it.
GOALS = {"short": ("chat", 1.0), "mixed": ("chat", 1.05), "prefix": ("tuned", 1.3)}
_NAMES = {
    "chat": "vLLM's LLM.chat",
    "plain": "Ray Data LLM, its defaults",
    "tuned": "Ray Data LLM, tuned by hand",
    "daft": "Daft's prompt()",
    "vllm": "engine='vllm'",
}
#: The tiny model needs more tokens for a word than a large one, and has 2,048 positions.
_SIZES = ["--longest", "300", "--max-model-len", "2048"]
_DAFT = "daft==0.7.26"
_DAFT_FOLDER = ROOT / ".peers"
_SECONDS = 600


def run() -> bool:
    from tests.support.tiny_model import tiny_model

    model, met = str(tiny_model()), True
    has_daft = _install_daft()
    for work, modes in WORK.items():
        results = {mode: _measure(model, work, mode) for mode in modes if mode != "daft" or has_daft}
        ours = results["vllm"]
        rows = [
            [
                _NAMES[mode],
                f"{result['rows_per_s']:,.0f}",
                f"{ours['rows_per_s'] / result['rows_per_s']:.2f}",
                f"{result['whole_s']:.0f} s",
                f"{ours['whole_s'] / result['whole_s']:.2f}",
            ]
            for mode, result in results.items()
        ]
        header = [f"{ROWS[work]:,} {work} rows", "rows/s", "vllm / it", "whole run", "vllm / it"]
        print_rows(header, rows)
        peer, goal = GOALS[work]
        ratio = ours["rows_per_s"] / results[peer]["rows_per_s"]
        verdict = "met" if ratio >= goal else "NOT MET"
        print(f"{work}: vllm / {peer} {ratio:.2f} (goal: at least {goal:g}): {verdict}\n", flush=True)
        met = met and ratio >= goal
    return met


def _measure(model: str, kind: str, mode: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.compare", mode, "--model", model, "--work", kind]
    path = os.pathsep.join(filter(None, [str(ROOT), str(_DAFT_FOLDER) if mode == "daft" else ""]))
    env = {**os.environ, "PYTHONPATH": path, **CPU_ENV, "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+") as output:
        work = subprocess.Popen(
            [*command, "--rows", str(ROWS[kind]), *_SIZES],
            cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            work.wait(_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(work.pid, signal.SIGKILL)  # some leave engine processes behind
        output.seek(0)
        log = output.read()
    lines = [line for line in log.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"{mode}, {kind} rows: {log[-4000:]}")
    result: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    say(f"{kind}, {mode}: {result['rows_per_s']:,.0f} rows/s, {result['whole_s']:.0f} s in all")
    return result


def _install_daft() -> bool:
    if _DAFT_FOLDER.exists():
        return True
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable, "--no-deps"]
    install = subprocess.run([*command, "--target", str(_DAFT_FOLDER), _DAFT], capture_output=True, text=True)
    if install.returncode:
        say(f"Daft is left out, as it cannot be installed: {install.stderr.strip()[-300:]}")
    return not install.returncode
