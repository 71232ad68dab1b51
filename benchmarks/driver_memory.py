"""How much the processor's driver grows over a large slice: it must be bounded by the work in flight, not by
the slice.

A slice of 5 million rows with a stub engine, on an embedded Ray head; the driver's resident memory is sampled
all along. The start is where the driver has planned, connected to Ray and begins to run the pipeline.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.lines import decode_line
from airflow_provider_raydatallm.local import ensure_head, stop_head
from airflow_provider_raydatallm.spec import SliceJob

ROWS = int(os.environ.get("BENCH_ROWS", 5_000_000))
FILES = 10
GOAL_MB = 300


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        root = Path(folder)
        _write(root / "in")
        job = SliceJob(
            slice_key="2026-01-31",
            input_path=str(root / "in"),
            output_path=str(root / "out"),
            model_source="stub/stub",
            prompt="Who is {name}?",
            engine="tests.stub_engine:StubEngine",
            batch_size=2048,
        )
        (root / "spec.json").write_text(job.model_dump_json())
        head = ensure_head(root / "ray")
        try:
            _measure(root, head.token)
        finally:
            stop_head(root / "ray")


def _write(folder: Path) -> None:
    folder.mkdir()
    each = ROWS // FILES
    for i in range(FILES):
        ids = range(i * each, (i + 1) * each)
        table = pa.table({"id": ids, "name": [f"customer {n}" for n in ids], "note": ["x" * 50] * each})
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=100_000)


def _measure(root: Path, token: str) -> None:
    address = (root / "ray" / "tmp" / "ray_current_cluster").read_text().strip()
    environment = os.environ | {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    command = [sys.executable, "-m", "airflow_provider_raydatallm.processor", "run", str(root / "spec.json")]
    began = time.monotonic()
    driver = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    samples: list[float] = []
    steps: dict[str, int] = {}
    ended = threading.Event()

    def sample() -> None:
        process = psutil.Process(driver.pid)
        while not ended.wait(0.1):
            try:
                samples.append(process.memory_info().rss / 2**20)
            except psutil.NoSuchProcess:
                return

    threading.Thread(target=sample, daemon=True).start()
    assert driver.stdout is not None
    for line in driver.stdout:
        said = decode_line(line, "-")
        if said is None:
            continue
        kind, value = said
        if kind == "progress":
            steps.setdefault(value["step"], len(samples))
            if value.get("rows"):
                print(f"  {value['rows']:>12,} rows  {samples[-1]:8.0f} MB", flush=True)
        elif kind == "error":
            raise SystemExit(value["message"])
    ended.set()
    if driver.wait():
        raise SystemExit("the driver failed")
    start = samples[steps["start"] - 1]
    running = max(samples[steps["start"] : steps["publish"]])
    publishing = max(samples[steps["publish"] :])
    print(f"\nrows {ROWS:,}  seconds {time.monotonic() - began:.0f}")
    print(
        f"driver at start {start:.0f} MB, peak while answering {running:.0f} MB, while publishing {publishing:.0f} MB"
    )
    print(f"growth {max(running, publishing) - start:.0f} MB (goal: under {GOAL_MB} MB)")
