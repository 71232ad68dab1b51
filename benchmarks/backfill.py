"""A backfill of small slices with a shared engine, with an engine per slice, and as one job, on CPUs.

Cold jobs are measured on three slices and extrapolated. `benchmarks.gpu.slices` does the work, here with the
demo's tiny model; it measures GPUs too. The goals are for a GPU: at most 1.25 times the one job, and ten
times as fast as cold jobs. Two cores spend their time on starting each job's processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.fresh import ROOT
from benchmarks.table import Figure, say, show

SLICES = int(os.environ.get("BENCH_BACKFILL_SLICES", 6))
ROWS = int(os.environ.get("BENCH_BACKFILL_ROWS", 100))
#: The slices share the machine's cores.
_AT_ONCE = max(2, (os.cpu_count() or 2) // 2)


def run() -> bool:
    from tests.support.tiny_model import tiny_model

    command = [sys.executable, "-m", "benchmarks.gpu.slices", "--model", str(tiny_model())]
    sizes = {"slices": SLICES, "rows": ROWS, "at-once": _AT_ONCE, "max-model-len": 256, "warm": 1}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    summary: dict[str, float] = {}
    with subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True) as work:
        assert work.stdout is not None
        for line in work.stdout:
            kind, _, text = line.strip().partition(" ")
            if kind == "RESULT":
                say(text)
            elif kind == "SUMMARY":
                summary = json.loads(text)
    if work.returncode or not summary:
        raise SystemExit(f"benchmarks.gpu.slices ended with {work.returncode}")
    of_whole, faster = summary["backfill"] / summary["whole"], summary["cold"] / summary["backfill"]
    return show(
        [
            Figure(f"{SLICES} slices of {ROWS:,} rows, {_AT_ONCE} at once", f"{summary['backfill']:.0f} s"),
            Figure("... one job over all rows", f"{summary['whole']:.0f} s"),
            Figure("... a cold job for each (three, extrapolated)", f"{summary['cold']:.0f} s"),
            Figure("... one of them, engine running", f"{summary['warm']:.1f} s"),
            Figure("of the one job", f"{of_whole:.2f}"),
            Figure("faster than cold jobs", f"{faster:.1f} x"),
        ]
    )  # fmt: skip
