"""How many rows have another answer when they are asked twice, at temperature 0 and 1.

    python -m benchmarks.gpu.repeat [texts drawn labels] --model DIR [--rows 4000] [--batch-invariant]

Needs ray, vllm and this repository, no Airflow. Starts its own Ray. Half of the rows of each slice are asked
again (`quality.repeat`), by the same engine, beside other rows than the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.own_head import own_head, run_slice
from benchmarks.prompts import rows_of

CASES: dict[str, dict[str, Any]] = {
    "texts": {"sampling_params": {"max_tokens": 64, "temperature": 0}},
    "drawn": {"sampling_params": {"max_tokens": 64, "temperature": 1}},
    "labels": {"choices": ["Finance", "Law", "Software", "Other"]},
}
JUDGE = "Text: {text} Summary: {answer} Is the summary about the text?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", default="{}", help="JSON of more engine arguments")
    parser.add_argument("--judge", action="store_true", help="the same model judges 200 answers, too")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--batch-invariant", action="store_true", help="vLLM's kernels for that")
    args = parser.parse_args()
    if args.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    with own_head() as folder:
        for name in args.cases or CASES:
            run(folder, args, name, CASES[name])


def run(folder: Path, args: argparse.Namespace, name: str, asked: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows_of("short", args.rows)), folder / "in.parquet")
    quality: dict[str, Any] = {"repeat": args.rows // 2}
    if args.judge:
        quality["judge"] = {"model": args.model, "prompt": JUDGE, "kwargs": {"max_model_len": 2048}}
    job = {
        "slice_key": "all",
        "input_path": f"{folder}/in.parquet",
        "output_path": f"{folder}/{name}",
        "model_source": args.model,
        "prompt": "What is this text about? {text}",
        "quality": quality,
        "engine": {"scope": "slice", "kwargs": {"max_model_len": 2048, **json.loads(args.engine)}},
        **asked,
    }
    began = time.time()
    report = run_slice(job, folder / f"{name}.json")
    figures = {"seconds": round(time.time() - began, 1), **report["seconds"], **report["repeat"]}
    figures["judge"] = report["judge"]
    invariant = "invariant" if args.batch_invariant else "default"
    print(f"RESULT {name}, {invariant}, {args.engine}: {json.dumps(figures)}", flush=True)


if __name__ == "__main__":
    main()
