"""Planning text, many files and many columns, beside Arrow's plain read of the same file.

Goals: the plan of JSON Lines takes at most 1.5 times as long as `pyarrow.json.read_json`, which holds the
whole table, and under 500 MB; 5,000 files of 3 rows are planned in 10 s and published in 5 s; 3,000 columns
are planned and published in 3 s. Each time is the best of three processes, which take turns.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fresh import Fresh, fresh
from benchmarks.table import Figure, say, show

MB = int(os.environ.get("BENCH_INPUT_MB", 1_000))
FILES, COLUMNS = 5_000, 3_000
GOAL_RATIO, GOAL_MB = 1.5, 500
PLAN_FILES_SECONDS, PUBLISH_FILES_SECONDS, COLUMNS_SECONDS = 10, 5, 3

_RUNS = 3
_WORDS = ("order", "shipped", "on", "Monday", "returned", "without", "a", "reason", "late")


def run() -> bool:
    figures = []
    for suffix, goal in (("jsonl", GOAL_RATIO), ("csv", None)):
        with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
            say(f"writing {MB:,} MB of {suffix}")
            _write_text(Path(folder, f"in/a.{suffix}"))
            figures += _beside_arrow(folder, suffix, goal)
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        say(f"{FILES:,} files, then {COLUMNS:,} columns")
        _write_files(Path(folder, "files/in"))
        _write_columns(Path(folder, "columns/in"))
        files, columns = (
            _best(
                fresh(publish_it, f"{folder}/{name}/in", f"{folder}/{name}/out{turn}")
                for turn in range(_RUNS)
            )
            for name in ("files", "columns")
        )
    figures += [
        _seconds(f"plan {FILES:,} files of 3 rows", files["plan"], PLAN_FILES_SECONDS),
        _seconds("... publish them", files["publish"], PUBLISH_FILES_SECONDS),
        _seconds(
            f"plan and publish {COLUMNS:,} columns", columns["plan"] + columns["publish"], COLUMNS_SECONDS
        ),
    ]
    return show(figures)


def _beside_arrow(folder: str, suffix: str, goal: float | None) -> list[Figure]:
    plans: list[Fresh] = []
    reads: list[Fresh] = []
    for _ in range(_RUNS):
        say("planning, then reading with Arrow")
        plans.append(fresh(plan_it, f"{folder}/in/", f"{folder}/out"))
        reads.append(fresh(read_it, f"{folder}/in/a.{suffix}"))
    plan, read = (min(one.result for one in some) for some in (plans, reads))
    peak, peak_of_read = (max(one.peak_mb for one in some) for some in (plans, reads))
    ratio = plan / read
    return [
        Figure(
            f"plan of {MB:,} MB of {suffix}: {plan:.1f} s; Arrow's read {read:.1f} s",
            f"{ratio:.2f} times",
            "" if goal is None else f"< {goal}",
            None if goal is None else ratio < goal,
        ),
        Figure(
            "... peak of memory", f"{peak:.0f} MB; {peak_of_read:.0f} MB", f"< {GOAL_MB} MB", peak < GOAL_MB
        ),
    ]


def _seconds(what: str, seconds: float, goal: float) -> Figure:
    return Figure(what, f"{seconds:.1f} s", f"< {goal} s", seconds < goal)


def _best(runs: Iterator[Fresh]) -> dict[str, float]:
    results = [one.result for one in runs]
    return {name: min(result[name] for result in results) for name in results[0]}


def plan_it(source: str, output: str) -> float:
    from airflow_provider_raydatallm.processor.input.survey import make_plan
    from tests.support.in_process import job_of

    job = job_of(input_path=source, output_path=output, prompt="{name}")
    began = time.monotonic()
    make_plan(job)
    return time.monotonic() - began


def read_it(path: str) -> float:
    import pyarrow.csv as pa_csv
    import pyarrow.json as pa_json

    began = time.monotonic()
    (pa_csv.read_csv if path.endswith("csv") else pa_json.read_json)(path)
    return time.monotonic() - began


def publish_it(source: str, output: str) -> dict[str, float]:
    """Runs a slice around answers that cost nothing."""
    from airflow_provider_raydatallm.processor.slice_run import run_slice
    from tests.support.in_process import InProcess, job_of

    job = job_of(input_path=source, output_path=output, prompt="{name}")
    steps: dict[str, float] = {}
    began = time.monotonic()

    def note(progress: Any) -> None:
        steps.setdefault(progress["step"], time.monotonic() - began)

    run_slice(job, note, InProcess(batch=256, flush_every=10**9))
    return {"plan": steps["check"] - steps["plan"], "publish": time.monotonic() - began - steps["publish"]}


def _write_text(path: Path) -> None:
    """Writes one block of records again and again: parsing costs the same for each."""
    path.parent.mkdir()
    chance = random.Random(7)
    records = [
        {
            "id": n,
            "name": f"customer {n}",
            "text": " ".join(chance.choices(_WORDS, k=chance.randint(5, 80))),
            "price": chance.randint(1, 10**6) / 100,
            "at": f"2026-01-{chance.randint(1, 31):02}T12:00:00",
        }
        for n in range(20_000)
    ]
    if path.suffix == ".csv":
        header = ",".join(records[0]) + "\n"
        block = "".join(",".join(map(str, record.values())) + "\n" for record in records)
    else:
        header, block = "", "".join(json.dumps(record) + "\n" for record in records)
    with path.open("w") as file:
        file.write(header)
        for _ in range(max(1, MB * 10**6 // len(block))):
            file.write(block)


def _write_files(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for n in range(FILES):
        table = pa.table({"id": [n, n + 1, n + 2], "name": ["a", "b", "c"], "text": ["text"] * 3})
        pq.write_table(table, folder / f"{n:05}.parquet")


def _write_columns(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    columns = {f"c{n}": [n, None, 1] for n in range(COLUMNS)}
    pq.write_table(pa.table({"name": ["a", "b", "c"], **columns}), folder / "a.parquet")
