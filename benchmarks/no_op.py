"""Running a finished slice again: the operator task's own time, where the worker can read the store.

Goal: under 3 s and no Ray job. The operator runs in a new Python process; nothing listens at its connection,
so that a job would be an error. The slice has 1,000 input files on the local disk, then 50 on S3 (moto, on
this machine). Medians of several runs; importing Airflow, which every task does, is shown separately.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.table import Figure, say, show
from tests.support.slice_jobs import spec

FILES = {"on disk": 1_000, "on S3": 50}
ROWS = 20  # of each file
RUNS = int(os.environ.get("BENCH_RUNS", 5))
GOAL_SECONDS = 3

_PORT = 5599
_S3 = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_PORT}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def run() -> bool:
    figures = []
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder, _s3():
        for (where, files), root in zip(FILES.items(), (folder, "s3://bench"), strict=True):
            env = {
                **(_S3 if root.startswith("s3:") else {}),
                "AIRFLOW_HOME": f"{folder}/airflow",
                "AIRFLOW_CONN_RAY_DEFAULT": "http://127.0.0.1:9",
                "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            }
            say(f"publishing {files * ROWS:,} rows of {files:,} files {where}")
            fresh(publish_it, root, files, env=env)
            say(f"running it again, {RUNS} times")
            again = [fresh(run_it_again, root, env=env) for _ in range(RUNS)]
            task = statistics.median(a.result["execute"] for a in again)
            imports = statistics.median(a.result["import"] for a in again)
            whole = statistics.median(a.seconds for a in again)
            spec = Path(folder, "spec.json")
            spec.write_text(_job(root).model_dump_json())
            status = statistics.median(_status(spec, env) for _ in range(RUNS))
            figures += [
                Figure(
                    f"{where}: the operator's execute", f"{task:.2f} s", f"< {GOAL_SECONDS} s",
                    task < GOAL_SECONDS,
                ),
                Figure("... importing Airflow and the operator", f"{imports:.2f} s"),
                Figure("... the whole Python process", f"{whole:.2f} s"),
                Figure("... Ray jobs", "0", "0", all(a.result["job"] is None for a in again)),
                Figure("... airflow-ray-llm show SPEC", f"{status:.2f} s"),
            ]  # fmt: skip
    return show(figures)


def publish_it(root: str, files: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.processor.slice_run import run_slice
    from airflow_provider_raydatallm.processor.storage.store import Store
    from tests.support.in_process import InProcess

    if root.startswith("s3:"):
        import s3fs

        s3fs.S3FileSystem().mkdir(root)
    store = Store(f"{root}/in")
    for i in range(files):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"name": [f"customer {i * ROWS + n}" for n in range(ROWS)]}), sink)
        if store.is_local:
            Path(f"{root}/in").mkdir(exist_ok=True)
            Path(f"{root}/in/{i}.parquet").write_bytes(sink.getvalue())
        else:
            store.put(f"{i}.parquet", sink.getvalue().to_pybytes())
    report = run_slice(_job(root), lambda progress: None, InProcess(batch=1000, flush_every=1000))
    assert report.counts.succeeded == files * ROWS
    return report.counts.succeeded


def run_it_again(root: str) -> dict[str, Any]:
    began = time.monotonic()
    from airflow.sdk import DAG

    from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

    imported = time.monotonic()
    from tests.support.context import context_of

    job = _job(root)
    with DAG("bench", schedule=None):
        operator = RayLLMBatchOperator(
            task_id="ask",
            slice_key=job.slice_key,
            input_path=job.input_path,
            output_path=job.output_path,
            prompt=job.task.prompt,
            model_source=job.model_source,
        )
    context = context_of(operator)
    executing = time.monotonic()
    result = operator.execute(context)
    ended = time.monotonic()
    assert result["outcome"] == "unchanged", result
    return {"import": imported - began, "execute": ended - executing, "job": result["ray_job_id"]}


def _status(spec: Path, env: dict[str, str]) -> float:
    began = time.monotonic()
    program = Path(sys.executable).with_name("airflow-ray-llm")
    status = subprocess.run(
        [program, "show", "--json", str(spec)], env={**os.environ, **env}, check=True, capture_output=True
    )
    seconds = time.monotonic() - began
    assert json.loads(status.stdout)["report"]["counts"]["planned"], status.stdout
    return seconds


def _job(root: str) -> Any:
    return spec(
        slice_key="2026-01-31",
        input_path=f"{root}/in",
        output_path=f"{root}/out",
        model_source="stub/stub",
        prompt="Who is {name}?",
    )


@contextmanager
def _s3() -> Iterator[None]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(_PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield  # clients retry until it listens
    finally:
        server.terminate()
        server.wait()
