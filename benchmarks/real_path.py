"""CPU time per row of each kind of process on the real path, with a worker that answers at once.

Goals: under 150 microseconds of a core per row in all, of which the driver and dedup take under 10 each. The
cost of a row is the difference between a large and a small slice, which excludes the start. Prompts have some
75 tokens and are all different; sampling is greedy, so that dedup has to see each of them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.table import Figure, say, show

SMALL = int(os.environ.get("BENCH_REAL_PATH_SMALL", 20_000))
ROWS = int(os.environ.get("BENCH_REAL_PATH_ROWS", 200_000))
#: Microseconds a row.
GOALS = {"driver": 10, "dedup": 10}
GOAL = 150


def run() -> bool:
    from benchmarks.model_folder import write_model_folder

    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        write_model_folder(Path(folder, "model"))
        small, large = (fresh(measure, folder, rows).result for rows in (SMALL, ROWS))
    say(f"{small}, {large}")
    costs = {
        kind: (seconds - small["cpu"][kind]) / (ROWS - SMALL) * 1e6 for kind, seconds in large["cpu"].items()
    }
    rate = (ROWS - SMALL) / (large["seconds"] - small["seconds"])
    figures = [_figure(kind, cost, GOALS.get(kind)) for kind, cost in costs.items()]
    figures += [_figure("in all", sum(costs.values()), GOAL), Figure("rows/s", f"{rate:,.0f}")]
    return show(figures)


def _figure(what: str, cost: float, goal: float | None) -> Figure:
    if goal is None:
        return Figure(what, f"{cost:.0f} us a row")
    return Figure(what, f"{cost:.0f} us a row", f"under {goal}", cost < goal)


def measure(folder: str, count: int) -> dict[str, Any]:
    from benchmarks.embedded import local_ray
    from benchmarks.process_cpu import ProcessCpu
    from benchmarks.prompts import rows_of
    from benchmarks.real_slice import run_real_slice, write_rows

    table = write_rows(folder, rows_of("short", count))
    sampling = {"temperature": 0, "max_tokens": 16}
    with (
        tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as ray,
        local_ray(Path(ray)),
        ProcessCpu() as cpu,
    ):
        report, _ = run_real_slice(folder, table, "benchmarks.paced_worker:NoOpEngine", sampling)
    return {"seconds": report.seconds.inference, "cpu": cpu.seconds()}
