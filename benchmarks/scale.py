"""Many workers on one machine, in one slice: rows per second, and CPU time per row of each kind of process.

Each worker is a paced one (`paced_worker`) of 480 rows/s. Figures are of the time from the first update with
a tenth of the rows, when all workers have started, to the last row in storage: writers tell what they have
written, on a full machine every twenty seconds. 64 workers are left out below 16 cores. Neither Airflow nor
vLLM is needed.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.gpu_pace import Pace, PacedRow, offline_seconds
from benchmarks.table import print_rows, say

_CORES = os.cpu_count() or 1
WORKERS = [int(n) for n in os.environ.get("BENCH_SCALE_WORKERS", "1 8 64" if _CORES >= 16 else "1 8").split()]
#: Of work for each worker; starting many takes a while, in which the first ones work.
SECONDS = float(os.environ.get("BENCH_SCALE_SECONDS", 60))
#: Rows/s of a worker.
RATE = 480
_STARTED = 0.1
_PROMPT_TOKENS, _ANSWER_TOKENS = 75, 16
_PACE = Pace(cached=0.9)


def run() -> None:
    from benchmarks.model_folder import write_model_folder

    results = []
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        write_model_folder(Path(folder, "model"))
        for workers in WORKERS:
            result = fresh(measure, folder, workers).result
            say(f"{workers} workers: {result}")
            results.append((workers, result))
    kinds = list(results[0][1]["cpu"])
    rows = []
    for workers, result in results:
        costs = [result["cpu"][kind] / result["rows"] * 1e6 for kind in kinds]
        rate = result["rows"] / result["seconds"]
        figures = [f"{rate:,.0f}", f"{rate / (workers * RATE):.2f}"]
        rows.append([str(workers), *figures, *(f"{cost:.0f}" for cost in (*costs, sum(costs)))])
    print_rows(
        ["workers", "rows/s", "of all workers'", *(f"{kind}, us a row" for kind in kinds), "in all"], rows
    )


def measure(folder: str, workers: int) -> dict[str, Any]:
    from benchmarks.embedded import local_ray
    from benchmarks.process_cpu import ProcessCpu
    from benchmarks.prompts import rows_of
    from benchmarks.real_slice import run_real_slice, write_rows

    count = int(workers * RATE * SECONDS)
    table = write_rows(folder, rows_of("short", count))
    sample = [PacedRow(_PROMPT_TOKENS, _ANSWER_TOKENS) for _ in range(20_000)]
    speed = RATE * offline_seconds(sample, _PACE) / len(sample)
    with (
        tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as ray,
        local_ray(Path(ray), cpus=3 * workers + 8),
        ProcessCpu() as cpu,
    ):
        _, progress = run_real_slice(
            folder,
            table,
            "benchmarks.paced_worker:PacedEngine",
            {"temperature": 0, "max_tokens": _ANSWER_TOKENS},
            workers=workers,
            config={"pace": asdict(_PACE), "speed": speed},
        )
    first, last = next(p for p in progress if p.rows >= _STARTED * count), progress[-1]
    seconds = cpu.seconds(first.at, last.at)
    return {"rows": last.rows - first.rows, "seconds": last.at - first.at, "cpu": seconds}
