"""Planning the reference workload: a CSV of 2,000,000 customers in one file, some of them with newlines in
quotes.

Goals: planned in under 10 s, and less than 1 GB in the driver, while planning and over the whole run. Read in
parallel means that units are read independently of each other: two processes read all units in less time than
one (on a machine with two free cores).
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.table import Figure, say, show

ROWS = int(os.environ.get("BENCH_CSV_ROWS", 2_000_000))
GOAL_SECONDS = 10
GOAL_MB = 1024

_BLOCK = 20_000


def run() -> bool:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        root = Path(folder)
        say(f"writing {ROWS:,} customers")
        path = _write(root)
        size = path.stat().st_size / 2**20
        say(f"planning {size:.0f} MB")
        plan = fresh(plan_it, folder)
        say("reading all units in one process, then in two")
        one, two = (fresh(read_it, folder, n).result for n in (1, 2))
        assert one["rows"] == two["rows"] == plan.result["rows"] == ROWS, (one, two, plan)
        say("the whole slice on Ray, with a stub engine")
        whole = fresh(answer_it, folder)
    seconds, units = plan.result["seconds"], plan.result["units"]
    return show(
        [
            Figure(
                f"plan {ROWS:,} rows, {size:.0f} MB", f"{seconds:.1f} s", f"< {GOAL_SECONDS} s",
                seconds < GOAL_SECONDS,
            ),
            Figure(
                "driver's memory, planning", f"{plan.peak_mb:.0f} MB", f"< {GOAL_MB} MB",
                plan.peak_mb < GOAL_MB,
            ),
            Figure("units that are read independently", f"{units}", "> 1", units > 1),
            Figure(
                "all columns read, one process : two", f"{one['seconds']:.1f} : {two['seconds']:.1f} s",
                "faster with two", two["seconds"] < one["seconds"],
            ),
            Figure(
                "driver's memory, whole run", f"{whole.peak_mb:.0f} MB", f"< {GOAL_MB} MB",
                whole.peak_mb < GOAL_MB,
            ),
            Figure("whole run with a stub engine", f"{whole.seconds:.0f} s"),
            Figure("... of it publishing", f"{whole.result['publish']:.0f} s"),
        ]
    )  # fmt: skip


def plan_it(folder: str) -> dict[str, Any]:
    from airflow_provider_raydatallm.processor.input.plan import make_plan

    began = time.monotonic()
    plan = make_plan(_job(folder))
    return {"seconds": time.monotonic() - began, "rows": plan.rows, "units": len(plan.units)}


def read_it(folder: str, processes: int) -> dict[str, Any]:
    from airflow_provider_raydatallm.processor.input.plan import make_plan

    plan = make_plan(_job(folder))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        # Both have begun, with all that they import, before the clock starts.
        list(pool.map(partial(_rows, plan), plan.units[:1] * 4 * processes))
        began = time.monotonic()
        rows = sum(pool.map(partial(_rows, plan), plan.units))
        return {"seconds": time.monotonic() - began, "rows": rows}


def answer_it(folder: str) -> dict[str, Any]:
    from airflow_provider_raydatallm.processor.slice_run import run_slice
    from benchmarks.embedded import local_ray

    said = 0.0

    def progress(now: dict[str, Any]) -> None:
        nonlocal said
        if now["step"] != "answer" or time.monotonic() - said > 15:
            said = time.monotonic()
            say(f"{now['step']} {now.get('rows') or 0:,} rows")

    with local_ray(Path(folder)):
        report = run_slice(_job(folder), progress)
    assert report.counts.succeeded == ROWS, report
    return {"publish": report.seconds.publish}


def _rows(plan: Any, unit: Any) -> int:
    return sum(table.num_rows for table in plan.read(unit))


def _job(folder: str) -> Any:
    from airflow_provider_raydatallm.contract.spec import SliceJob

    return SliceJob(
        slice_key="2026-01-31",
        input_path=f"{folder}/in/customers.csv",
        output_path=f"{folder}/out",
        model_source="stub/stub",
        prompt="What industry is this company in: {Company}",
        engine="tests.support.stub_engine:StubEngine",
        batch_size=2048,
    )


def _write(root: Path) -> Path:
    """The demo's customers, over and over with new numbers: one company in 50 has a newline in its name."""
    from demo.customers import write_customers

    (made,) = write_customers(root / "made", ["2026-01-31"], min(_BLOCK, ROWS))
    with open(made, newline="") as f:
        header, *rows = csv.reader(f)
    company = header.index("Company")
    for row in rows[::50]:
        row[company] = f'{row[company]}\n"Branch", 2nd floor'
    path = root / "in" / "customers.csv"
    path.parent.mkdir()
    with open(path, "w", newline="") as f:
        csv.writer(f, lineterminator="\n").writerow(header)
        for text in _blocks(rows):
            f.write(text)
    return path


def _blocks(rows: list[list[str]]) -> Iterator[str]:
    for start in range(0, ROWS, len(rows)):
        block = io.StringIO()
        here = rows[: ROWS - start]
        numbered = ([str(start + i + 1), *row[1:]] for i, row in enumerate(here))
        csv.writer(block, lineterminator="\n").writerows(numbered)
        yield block.getvalue()
