"""How much the processor's driver grows over a large slice: it must be bounded by the work in flight, not by
the slice.

A slice of 5 million rows with a stub engine, on an embedded Ray head; the driver's resident memory is sampled
all along. The start is where the driver has planned, connected to Ray and begins to run the pipeline.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.progress_text import progress_text
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.local_ray.head import stop_head
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task.job_verdict import Finished, JobWatch, Wait

ROWS = int(os.environ.get("BENCH_ROWS", 5_000_000))
FILES = 10
GOAL_MB = 300


def run() -> bool:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        root = Path(folder)
        _write(root / "in")
        job = SliceJob(
            slice_key="2026-01-31",
            input_path=str(root / "in"),
            output_path=str(root / "out"),
            model_source="stub/stub",
            prompt="Who is {name}?",
            engine="stub_engine:StubEngine",
            batch_size=2048,
        )
        os.environ |= {
            "AIRFLOW_RAY_LLM_LOCAL_DIR": str(root / "ray"),
            "AIRFLOW_CONN_RAY_DEFAULT": "ray://local",
        }
        try:
            return _measure(job)
        finally:
            stop_head()


def _write(folder: Path) -> None:
    folder.mkdir()
    each = ROWS // FILES
    for i in range(FILES):
        ids = range(i * each, (i + 1) * each)
        table = pa.table({"id": ids, "name": [f"customer {n}" for n in ids], "note": ["x" * 50] * each})
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=100_000)


def _measure(job: SliceJob) -> bool:
    hook = RayHook()
    stub = packages.user_packages(
        [], [str(Path(__file__).parents[1] / "tests" / "support" / "stub_engine.py")], None
    )
    names = {"dag_id": "bench", "task_id": "driver_memory", "slice_key": job.slice_key}
    began = time.monotonic()
    name, nonce = f"driver-memory-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    JobSubmission(job, stub, None, {}, names).submit(hook, "run", name, nonce)
    watch, driver = JobWatch(nonce), None
    step, peaks, start = "", {"answer": 0.0, "publish": 0.0}, 0.0
    while True:
        info = hook.call(jobs_api.get_status(name))
        if info is not None:
            watch.check_status(hook.call(jobs_api.read_log_tail(name, info, 200)))
        verdict = watch.check(info.status if info else None)
        if isinstance(verdict, Finished):
            break
        if not isinstance(verdict, Wait):
            raise SystemExit(str(verdict))
        if verdict.progress is not None:
            step = verdict.progress["step"]
            print(f"  {progress_text(verdict.progress)}; driver {_resident(driver):.0f} MB", flush=True)
        for _ in range(10):
            driver = driver or _driver(nonce)
            now = _resident(driver)
            start = now if step in ("", "plan", "check") else start
            if step in ("start", "answer", "publish"):
                kind = "publish" if step == "publish" else "answer"
                peaks[kind] = max(peaks[kind], now)
            time.sleep(0.1)
    seconds = time.monotonic() - began
    print(f"\n{ROWS:,} rows in {seconds:.0f} s; driver at its start {start:.0f} MB")
    print(f"peak while answering {peaks['answer']:.0f} MB, while publishing {peaks['publish']:.0f} MB")
    growth = max(peaks.values()) - start
    print(f"growth {growth:.0f} MB (goal: under {GOAL_MB} MB)")
    return growth < GOAL_MB


def _driver(nonce: str) -> psutil.Process | None:
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if nonce in command and command[0].endswith("python"):
            return process
    return None


def _resident(process: psutil.Process | None) -> float:
    try:
        return process.memory_info().rss / 2**20 if process is not None else 0.0
    except psutil.NoSuchProcess:
        return 0.0
