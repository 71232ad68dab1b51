"""Twenty days of tiny slices: what the provider adds to each, beside Ray and the engine.

Goal: under 1 s. Each day is done twice in turn on one embedded head: by the operator (its `execute`, from a
spec to the XCom), and by a bare Ray job that does the same to its rows with plain Ray Data: read, answer
through the same stub engine's function, write Parquet. The bare job's time ends when its file is there.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks.table import Figure, say, show

DAYS = int(os.environ.get("BENCH_DAYS", 20))
ROWS = 100
GOAL_SECONDS = 1.0
ROOT = Path(__file__).resolve().parents[1]


def run() -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.hooks.ray import RayHook
    from airflow_provider_raydatallm.local_ray.head import ensure_head, stop_head

    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = f"{folder}/head"
        os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
        days = [f"2026-01-{i + 1:02}" for i in range(DAYS)]
        for day in ["warm-up", *days]:
            Path(folder, "in", f"ds={day}").mkdir(parents=True)
            rows = pa.table({"name": [f"{day} {i}" for i in range(ROWS)]})
            pq.write_table(rows, f"{folder}/in/ds={day}/rows.parquet")
        say("starting a head")
        ensure_head(Path(folder, "head"))
        try:
            hook = RayHook()
            ours, bare = [], []
            for day in ["warm-up", *days]:
                ours.append(_by_operator(folder, day))
                bare.append(_bare(hook, folder, day))
                say(f"{day}: operator {ours[-1][0]:.1f} s, bare job {bare[-1]:.1f} s")
        finally:
            stop_head(Path(folder, "head"))
    totals, beside = zip(*ours[1:], strict=True)
    added = [a - b for a, b in zip(totals, bare[1:], strict=True)]
    quarter, middle, three = statistics.quantiles(added, n=4) if DAYS > 1 else added * 3
    return show(
        [
            Figure("a slice by the operator, median", f"{statistics.median(totals):.2f} s"),
            Figure("... of that beside Ray's start and the pipeline", f"{statistics.median(beside):.2f} s"),
            Figure("... by a bare Ray job", f"{statistics.median(bare[1:]):.2f} s"),
            Figure(
                "added to a slice, median", f"{middle:.2f} s", f"< {GOAL_SECONDS:g} s", middle < GOAL_SECONDS
            ),
            Figure("... its middle half", f"{quarter:.2f} to {three:.2f} s"),
        ]
    )


def _by_operator(folder: str, day: str) -> tuple[float, float]:
    """Seconds in all, and those that are neither Ray's start of the job nor its pipeline."""
    from airflow.sdk import DAG

    from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
    from tests.support.context import context_of

    with DAG("bench", schedule=None):
        operator = RayLLMBatchOperator(
            task_id="ask", slice_key=day, prompt="Who is {name}?", model_source="stub/stub",
            input_path=f"{folder}/in/ds={{slice}}/", output_path=f"{folder}/out",
            engine="stub_engine:StubEngine", code_paths=[str(ROOT / "tests" / "support" / "stub_engine.py")],
        )  # fmt: skip
    began = time.time()
    result = operator.execute(context_of(operator))
    assert (result["outcome"], result["counts"]["succeeded"]) == ("published", ROWS), result
    seconds, total = result["seconds"], time.time() - began
    return total, total - seconds["queued"] - seconds["engine_start"] - seconds["inference"]


def _bare(hook: Any, folder: str, day: str) -> float:
    from airflow_provider_raydatallm.hooks import jobs_api

    began, done, name = time.time(), Path(folder, "bare", day, "done"), f"bare-{day}-{uuid.uuid4().hex[:6]}"
    command = f"{sys.executable} -m benchmarks.slice_cost {folder}/in/ds={day} {done.parent}"
    environment = {"env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT}/tests"}}
    hook.call(jobs_api.submit(submission_id=name, entrypoint=command, runtime_env=environment, metadata={}))
    while not done.exists():
        info = hook.call(jobs_api.get_status(name))
        assert info.status not in ("FAILED", "STOPPED"), info.message
        time.sleep(0.2)
    return done.stat().st_mtime - began


def bare_job(source: str, target: str) -> None:
    import json

    import pyarrow as pa
    import ray
    from stub_engine import answer

    def ask(batch: pa.Table) -> pa.Table:
        asked = [
            json.dumps({"messages": [{"role": "user", "content": f"Who is {n}?"}], "sampling_params": {}})
            for n in batch.column("name").to_pylist()
        ]
        return answer(batch.append_column("__request", pa.array(asked)))

    ray.init(logging_level="warning")
    rows = ray.data.read_parquet(source).map_batches(ask, batch_size=128, batch_format="pyarrow")
    rows.select_columns(["name", "text"]).write_parquet(target)
    Path(target, "done").touch()


if __name__ == "__main__":
    bare_job(*sys.argv[1:])
