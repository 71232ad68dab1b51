"""Small slices on one machine: each with its own engine, all with a shared engine, and as one job.

    python -m benchmarks.gpu.slices [cold shared whole] --model DIR [--dummy] [--slices 30] [--rows 2000]

Needs ray, vllm and this repository, no Airflow. Starts its own Ray. Each slice is a process of the processor,
as a Ray job would be, measured from its start until `_SUCCESS` exists. The backfill runs several at once, as
`max_active_runs` would, and begins without an engine. Cold jobs are measured on three slices, the first of
which may have to compile, and extrapolated from the last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.own_head import own_head, run_slice
from benchmarks.prompts import ASK, SAMPLING, rows_of

CASES = ("cold", "shared", "whole")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--model", required=True)
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=8, help="slices of the backfill")
    parser.add_argument("--warm", type=int, default=5, help="slices with the engine running")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--dummy", action="store_true", help="random weights, to measure a model's shape")
    parser.add_argument("--engine", default="{}", help="JSON of more engine arguments")
    args = parser.parse_args()
    with own_head() as folder:
        print("SUMMARY " + json.dumps(compare(folder, args)), flush=True)


def compare(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Returns seconds of a `backfill`, of as many `cold` jobs, of a `warm` slice and of one job (`whole`)."""
    work = Work(folder, args)
    keys, later = work.write()
    cases = args.cases or CASES
    seconds = {}
    if "cold" in cases:
        cold = [work.run(key, "cold", scope="slice") for key in keys[:3]]
        seconds["cold"] = cold[-1] * len(keys)
        say("one cold job a slice", cold, extrapolated=round(seconds["cold"]))
    if "shared" in cases:
        seconds["backfill"] = backfill(work, keys)
        say("backfill, engine shared", [seconds["backfill"]], slices=len(keys))
        warm = [work.run(key, "warm", scope="shared") for key in later]
        seconds["warm"] = statistics.median(warm)
        say("one slice, engine running", warm, median=round(seconds["warm"], 1))
    if "whole" in cases:
        seconds["whole"] = work.run("day-*", "whole", scope="slice")
        say("one job over all rows", [seconds["whole"]])
    return seconds


def backfill(work: Work, keys: Sequence[str]) -> float:
    began = time.monotonic()
    with ThreadPoolExecutor(work.at_once) as pool:
        list(pool.map(lambda key: work.run(key, "shared", scope="shared"), keys))
    return time.monotonic() - began


class Work:
    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self._folder = folder
        self._args = args
        self.at_once: int = args.at_once

    def write(self) -> tuple[list[str], list[str]]:
        """Writes the input; returns the keys of the backfill and of the slices that run later."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        days = [f"day-{n:02}" for n in range(self._args.slices)]
        later = [f"later-{n}" for n in range(self._args.warm)]
        each = self._args.rows
        rows = rows_of("short", len(days + later) * each, repeating=False)
        (self._folder / "in").mkdir()
        for n, key in enumerate(days + later):
            table = pa.Table.from_pylist(rows[n * each : (n + 1) * each])
            pq.write_table(table, self._folder / "in" / f"{key}.parquet")
        return days, later

    def run(self, key: str, table: str, scope: str) -> float:
        """Runs a slice as its own process and returns its seconds."""
        job = {
            "slice_key": "all" if "*" in key else key,
            "input_path": f"{self._folder}/in/{key}.parquet",
            "output_path": f"{self._folder}/{table}",
            "model_source": self._args.model,
            "prompt": ASK + "{text}",
            "sampling_params": {**SAMPLING, "max_tokens": "{answer_tokens}"},
            "engine": {
                "scope": scope,
                "kwargs": {
                    "max_model_len": self._args.max_model_len,
                    **({"load_format": "dummy"} if self._args.dummy else {}),
                    **json.loads(self._args.engine),
                },
            },
        }
        began = time.time()
        report = run_slice(job, self._folder / f"{table}-{job['slice_key']}.json")
        seconds = Path(report["output_path"], "_SUCCESS").stat().st_mtime - began
        say(f"{table} {key}", [seconds], **report["seconds"], **report["throughput"])
        return seconds


def say(what: str, seconds: Sequence[float], **figures: Any) -> None:
    shown = ", ".join(f"{name} {value}" for name, value in figures.items() if value is not None)
    print(f"RESULT {what}: {', '.join(f'{s:.1f}' for s in seconds)} s; {shown}", flush=True)


if __name__ == "__main__":
    main()
