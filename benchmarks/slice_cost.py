"""Twenty days of tiny slices: the seconds that the provider adds to each, beyond Ray and the engine.

Goal: under 1 s. Each day runs twice on one embedded head: by the operator (its `execute`, from a spec to the
XCom), and by a bare Ray job that does the same with plain Ray Data: it reads, answers through the same stub
engine's function and writes Parquet. The bare job's time ends when its file exists.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.fresh import ROOT
from benchmarks.paced import answer_names
from benchmarks.runs import by_operator, by_script
from benchmarks.table import Figure, say, show

DAYS = int(os.environ.get("BENCH_DAYS", 20))
ROWS = 100
GOAL_SECONDS = 1.0


def run() -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.clusters.embedded.head import ensure_head, stop_head

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
            ours, bare = [], []
            for day in ["warm-up", *days]:
                ours.append(_by_operator(folder, day))
                bare.append(_bare(folder, day))
                say(f"{day}: operator {ours[-1][0]:.1f} s, bare job {bare[-1]:.1f} s")
        finally:
            stop_head(Path(folder, "head"))
    totals, beside = zip(*ours[1:], strict=True)
    added = [a - b for a, b in zip(totals, bare[1:], strict=True)]
    quarter, middle, three = statistics.quantiles(added, n=4) if DAYS > 1 else added * 3
    return show(
        [
            Figure("a slice by the operator, median", f"{statistics.median(totals):.2f} s"),
            Figure("... without Ray's start and the pipeline", f"{statistics.median(beside):.2f} s"),
            Figure("... by a bare Ray job", f"{statistics.median(bare[1:]):.2f} s"),
            Figure(
                "added to a slice, median", f"{middle:.2f} s", f"< {GOAL_SECONDS:g} s", middle < GOAL_SECONDS
            ),
            Figure("... its middle half", f"{quarter:.2f} to {three:.2f} s"),
        ]
    )


def _by_operator(folder: str, day: str) -> tuple[float, float]:
    """Returns seconds in all, and those of neither Ray's start of the job nor its pipeline."""
    total, result = by_operator(
        slice_key=day, prompt="Who is {name}?", model_source="stub/stub",
        input_path=f"{folder}/in/ds={{slice}}/", output_path=f"{folder}/out",
        engine="stub_engine:StubEngine", code_paths=[str(ROOT / "tests" / "support" / "stub_engine.py")],
    )  # fmt: skip
    assert (result["outcome"], result["counts"]["succeeded"]) == ("published", ROWS), result
    seconds = result["seconds"]
    return total, total - seconds["queued"] - seconds["engine_start"] - seconds["inference"]


def _bare(folder: str, day: str) -> float:
    done = Path(folder, "bare", day, "done")
    return by_script("benchmarks.slice_cost", f"{folder}/in/ds={day}", str(done.parent), done=done)


def bare_job(source: str, target: str) -> None:
    import ray

    ray.init(logging_level="warning")
    rows = ray.data.read_parquet(source).map_batches(answer_names, batch_size=128, batch_format="pyarrow")
    rows.select_columns(["name", "text"]).write_parquet(target)
    Path(target, "done").touch()


if __name__ == "__main__":
    bare_job(*sys.argv[1:])
