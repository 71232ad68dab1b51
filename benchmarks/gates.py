"""What gates cost: of a slice of a million rows with the stub engine, in one process, on the local disk.

Twelve gates: shares, lengths, distributions, queries, a function, and comparisons with 30 slices before it.
Their share of the slice's time is measured in one run: the time in what they call, beside the whole. Memory
is that of a run with them, beside one without.

Goals: under 2% of the slice's time, and under 1 GB.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh, resident_mb
from benchmarks.table import Figure, say, show

ROWS = int(os.environ.get("BENCH_ROWS", 1_000_000))
BATCH, BEFORE = 20_000, 30
GOAL_SHARE, GOAL_MB = 0.02, 1_000
GATES: list[dict[str, Any]] = [
    {"of": "truncated", "max": 0.02},
    {"of": "quarantined", "max": 0.02},
    {"of": "degenerate", "max": 0.02},
    {"of": "rows", "against": BEFORE, "max": 1e9},
    {"of": "output_tokens", "against": BEFORE, "max": 2},
    {"of": "truncated", "against": BEFORE, "same": "weekday", "max": 0.1},
    {"of": "empty:answer", "max": 0.1},
    {"of": "median:answer", "against": BEFORE, "max": 2},
    {"of": "spread:answer", "against": BEFORE, "max": 100},
    {"of": "sql:SELECT count(*) - count(DISTINCT id) FROM answers", "max": 0},
    {"of": "sql:SELECT avg(length(answer)) FROM answers", "min": 1},
    {"of": "benchmarks.gates:share_of_links", "max": 0.05},
]


def share_of_links(answers: Any) -> float:
    import pyarrow.compute as pc

    rows = links = 0
    for batch in answers.to_batches(columns=["answer"]):
        rows += batch.num_rows
        links += pc.sum(pc.match_substring(batch.column("answer"), "http")).as_py() or 0
    return float(links / max(rows, 1))


def run() -> bool:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        say(f"{BEFORE} slices before it")
        fresh(write_earlier, folder)
        say(f"{ROWS:,} rows without gates, and with {len(GATES)}")
        plain = fresh(answer_slice, folder, "plain", False)
        gated = fresh(answer_slice, folder, "gated", True)
    seconds, result = gated.result["seconds"], gated.result
    share = result["gates"] / seconds
    figures = [
        Figure("the slice", f"{seconds:.1f} s ({plain.result['seconds']:.1f} s without gates)"),
        *(Figure(f"... {what}", f"{spent:.2f} s") for what, spent in result["parts"].items()),
        Figure("gates", f"{share:.1%} of it", f"< {GOAL_SHARE:.0%}", share < GOAL_SHARE),
        Figure(
            "memory at its peak",
            f"{gated.peak_mb:,.0f} MB ({plain.peak_mb:,.0f} MB without gates)",
            f"< {GOAL_MB:,} MB",
            gated.peak_mb < GOAL_MB,
        ),
    ]
    return show(figures)


def write_earlier(folder: str) -> None:
    for day in range(1, BEFORE + 1):
        _run(folder, f"2026-01-{day:02}", "gated", [GATES[8]], 200)


def answer_slice(folder: str, table: str, with_gates: bool) -> dict[str, Any]:
    """Returns seconds: of the slice, in all gates, and by what they call."""
    from airflow_provider_raydatallm.processor import build, build_run
    from airflow_provider_raydatallm.processor.publish import parts

    spent: defaultdict[str, float] = defaultdict(float)

    def timed(owner: Any, name: str, what: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def measured(*args: Any, **given: Any) -> Any:
            began = time.monotonic()
            try:
                return original(*args, **given)
            finally:
                spent[what] += time.monotonic() - began

        setattr(owner, name, measured)

    timed(build_run, "pass_gates", "verdicts, with the commits before")
    timed(build.Build, "check_rows", "queries and functions")
    timed(parts, "count_spread", "lengths")
    began = time.monotonic()
    _run(folder, "2026-01-31", table, GATES if with_gates else [], ROWS)
    seconds = time.monotonic() - began
    return {"seconds": seconds, "gates": sum(spent.values()), "parts": dict(spent), "mb": resident_mb()}


def _run(folder: str, key: str, table: str, gates: list[dict[str, Any]], rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.support.in_process import InProcess, job_of, run_in_process

    inputs = Path(folder, f"in-{rows}")
    if not inputs.exists():
        inputs.mkdir()
        table_of_rows = pa.table({"id": range(rows), "name": [f"row {i} of some words" for i in range(rows)]})
        pq.write_table(table_of_rows, inputs / "a.parquet", row_group_size=100_000)
    job = job_of(
        input_path=f"{inputs}/", output_path=f"{folder}/{table}", slice_key=key, quality={"gates": gates}
    )
    report = run_in_process(job, InProcess(batch=BATCH))
    assert report.outcome == "published"
