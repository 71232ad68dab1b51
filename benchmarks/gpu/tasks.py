"""Vectors by the processor beside vLLM's offline `LLM.embed`, and labels that are compared beside those that
a grammar has the model write, on one machine.

    python -m benchmarks.gpu.tasks offline embed labels grammar --model DIR --dummy

Needs ray, vllm and this repository, no Airflow. Each run prints one JSON line and is its own process. Of
`rows_per_s`, the seconds run from the first row in the engine to the last row out of it; of `to_table`, from
the input to the output table, without the engine's start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.gpu.compare import GpuBusy, engine_kwargs, figures, start_ray, timed_slice
from benchmarks.prompts import ASK, rows_of

LABELS = (
    "Law Firm", "Healthcare", "Software", "Retail", "Bank", "Construction", "Education", "Dining",
    "Transport", "Other",
)  # fmt: skip
_CHOOSE = {"prompt": ASK + "{text}", "choices": LABELS, "sampling_params": {"temperature": 0}}
CASES: dict[str, dict[str, Any]] = {
    "embed": {"task": "embed", "prompt": "{text}"},
    "labels": _CHOOSE,
    "grammar": {**_CHOOSE, "labels__exact": True},
}


def offline(args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from vllm import LLM

    busy, began = GpuBusy(), time.time()
    llm = LLM(model=args.model, runner="pooling", **engine_kwargs(args))
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of("short", args.rows)
        pq.write_table(pa.Table.from_pylist(rows), f"{folder}/in.parquet")
        opened = time.time()
        table = pq.read_table(f"{folder}/in.parquet")
        first = time.time()
        outputs = llm.embed(table.column("text").to_pylist(), use_tqdm=False)
        last = time.time()
        vectors = np.array([output.outputs.embedding for output in outputs], np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        pq.write_table(table.append_column("vector", column), f"{folder}/out.parquet")
        written = time.time()
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    result = figures(rows, began, first, last, tokens, busy.mean(first, last))
    return {**result, "to_table": round(len(rows) / (written - opened), 1)}


def run_case(args: argparse.Namespace, case: str) -> dict[str, Any]:
    rows = rows_of("short", args.rows)
    busy, began = GpuBusy(), time.time()
    start_ray()
    fields = {**CASES[case], "engine__kwargs": engine_kwargs(args), **json.loads(args.job)}
    report, first, last = timed_slice(rows, {"engine": "vllm", "model_source": args.model, **fields})
    tokens = (report.tokens.input or 0) + (report.tokens.output or 0)
    result = figures(rows, began, first, last, tokens, busy.mean(first, last))
    seconds = last - first + (report.seconds.publish or 0)
    parts = report.model_dump(mode="json", include={"counts", "tokens", "seconds", "throughput", "advice"})
    return {**result, "to_table": round(len(rows) / seconds, 1), "report": parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modes", nargs="+", choices=("offline", *CASES))
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--dummy", action="store_true", help="random weights, to measure a model's shape")
    parser.add_argument("--engine", default="{}", help="JSON of more engine arguments, for all modes")
    parser.add_argument("--job", default="{}", help="JSON of more arguments of the spec (engine__workers)")
    args = parser.parse_args()
    if len(args.modes) > 1:
        rest = sys.argv[1 + len(args.modes) :]
        for mode in args.modes:
            subprocess.run([sys.executable, "-m", "benchmarks.gpu.tasks", mode, *rest], check=False)
        return
    [mode] = args.modes
    result = offline(args) if mode == "offline" else run_case(args, mode)
    print("RESULT " + json.dumps({"mode": mode, "engine": json.loads(args.engine), **result}), flush=True)
    os._exit(0)  # engines are slow to end


if __name__ == "__main__":
    main()
