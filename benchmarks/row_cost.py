"""CPU time per row of the provider without its engine, and of a plain Ray Data pipeline.

Goal: under 100 microseconds of a core per row. Both answer with the same stub inside real Ray Data, in
batches of 2,048. CPU seconds are those of the driver and of all Ray workers. The cost of a row is the
difference between a large and a small slice, which excludes the start. Memory is the workers' peak together,
without the shared object store.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.table import print_rows, say
from tests.support.slice_jobs import spec

SMALL = 10_000
ROWS = int(os.environ.get("BENCH_ROW_COST_ROWS", 200_000))
GOAL = 100e-6
_BATCH = 2048


def run() -> bool:
    table, costs = [], {}
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        for rows in (SMALL, ROWS):
            _write(Path(folder, str(rows)), rows)
        for way in (provider, plain):
            small, large = (fresh(way, folder, rows).result for rows in (SMALL, ROWS))
            say(f"{way.__name__}: {small}, {large}")
            costs[way.__name__] = (large["cpu"] - small["cpu"]) / (ROWS - SMALL)
            rate = (ROWS - SMALL) / (large["seconds"] - small["seconds"])
            table.append(
                [
                    way.__name__,
                    f"{costs[way.__name__] * 1e6:.0f}",
                    f"{rate:,.0f}",
                    f"{large['seconds']:.1f} s",
                    f"{large['workers_mb']:.0f} MB",
                ]
            )
    print_rows([f"{ROWS:,} rows", "microseconds of a core a row", "rows/s", "in all", "workers"], table)
    met = costs["provider"] < GOAL
    print(f"provider's cost of a row {costs['provider'] * 1e6:.0f} us (goal: under {GOAL * 1e6:.0f}): "
          f"{'met' if met else 'NOT MET'}\n")  # fmt: skip
    return met


def provider(folder: str, rows: int) -> dict[str, Any]:
    from airflow_provider_raydatallm.processor.slice_run import run_slice

    job = spec(
        slice_key="2026-01-31",
        input_path=f"{folder}/{rows}",
        output_path=f"{folder}/out-{rows}",
        model_source="stub/stub",
        prompt="Who is {name}?",
        engine="tests.support.stub_engine:StubEngine",
        engine__batch_size=_BATCH,
    )
    return _measured(lambda: run_slice(job, lambda progress: None))


def plain(folder: str, rows: int) -> dict[str, Any]:
    import ray

    from benchmarks.paced import answer_names

    def work() -> None:
        table = ray.data.read_parquet(f"{folder}/{rows}")
        answers = table.map_batches(answer_names, batch_size=_BATCH, batch_format="pyarrow")
        answers.select_columns(["id", "name", "note", "text"]).write_parquet(f"{folder}/plain-{rows}")

    return _measured(work)


def _measured(work: Any) -> dict[str, Any]:
    from benchmarks.embedded import Workers, local_ray

    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder, local_ray(Path(folder)):
        workers = Workers()
        began, cpu = time.monotonic(), time.process_time()
        work()
        seconds, driver = time.monotonic() - began, time.process_time() - cpu
        time.sleep(1)  # for a last sample of the workers
        return {"seconds": seconds, "cpu": driver + workers.cpu_seconds(), "workers_mb": workers.peak_mb()}


def _write(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    names = [f"customer {n}" for n in range(rows)]
    table = pa.table({"id": range(rows), "name": names, "note": ["x" * 50] * rows})
    pq.write_table(table, folder / "rows.parquet", row_group_size=20_000)
