"""The same rows by the provider's engines and by others, on this machine's CPUs with the demo's tiny model.

Goals, of rows per second while the engine answers: short rows at least as many as vLLM's offline `LLM.chat`,
mixed ones at least 1.05 times, rows that share long beginnings at least 1.3 times plain Ray Data LLM tuned by
hand. `benchmarks.gpu.compare` does the work, each line in a process of its own; it is what measures a GPU as
well. Daft is installed for this alone, beside the environment; without a network its line is left out.
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
#: A row with a long beginning and a long answer takes as long as several others.
ROWS = {"short": _ROWS, "mixed": _ROWS, "prefix": _ROWS // 2}
#: Who does which rows: with all of them a run would be longer than anybody waits. Daft takes one length of
#: answers only.
WORK = {
    "short": ("chat", "plain", "tuned", "daft", "vllm"),
    "mixed": ("chat", "vllm"),
    "prefix": ("tuned", "vllm"),
}
#: The least that `vllm` is to do of what another does.
GOALS = {"short": ("chat", 1.0), "mixed": ("chat", 1.05), "prefix": ("tuned", 1.3)}
_NAMES = {
    "chat": "vLLM's LLM.chat",
    "plain": "Ray Data LLM, its defaults",
    "tuned": "Ray Data LLM, tuned by hand",
    "daft": "Daft's prompt()",
    "vllm": "engine='vllm'",
}
#: The tiny model writes a word in more tokens than a large one, and has 2,048 places for them.
_SIZES = ["--longest", "300", "--max-model-len", "2048"]
_DAFT = "daft==0.7.26"
_DAFT_FOLDER = ROOT / ".peers"
_SECONDS = 600


def run() -> bool:
    from tests.support.tiny_model import tiny_model

    model, met = str(tiny_model()), True
    has_daft = _install_daft()
    for work, modes in WORK.items():
        found = {mode: _measure(model, work, mode) for mode in modes if mode != "daft" or has_daft}
        ours = found["vllm"]
        rows = [
            [
                _NAMES[mode],
                f"{it['rows_per_s']:,.0f}",
                f"{ours['rows_per_s'] / it['rows_per_s']:.2f}",
                f"{it['whole_s']:.0f} s",
                f"{ours['whole_s'] / it['whole_s']:.2f}",
            ]
            for mode, it in found.items()
        ]
        header = [f"{ROWS[work]:,} {work} rows", "rows/s", "vllm has of it", "whole run", "vllm takes of it"]
        print_rows(header, rows)
        peer, goal = GOALS[work]
        ratio = ours["rows_per_s"] / found[peer]["rows_per_s"]
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
                os.killpg(work.pid, signal.SIGKILL)  # some leave their engines
        output.seek(0)
        said = output.read()
    results = [line for line in said.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise SystemExit(f"{mode}, {kind} rows: {said[-4000:]}")
    found: dict[str, Any] = json.loads(results[0].removeprefix("RESULT "))
    say(f"{kind}, {mode}: {found['rows_per_s']:,.0f} rows/s, {found['whole_s']:.0f} s in all")
    return found


def _install_daft() -> bool:
    if _DAFT_FOLDER.exists():
        return True
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable, "--no-deps"]
    done = subprocess.run([*command, "--target", str(_DAFT_FOLDER), _DAFT], capture_output=True, text=True)
    if done.returncode:
        say(f"Daft is left out, as it cannot be installed: {done.stderr.strip()[-300:]}")
    return not done.returncode
