"""Which shared engines are on the GPUs after slices that want other ones.

    python -m benchmarks.gpu.shared_engines --model DIR [--dummy] [--rows 500]

Needs ray, vllm and this repository, no Airflow. Starts its own Ray. Each slice is a process of the processor.
On one GPU an engine whose limit covers a slice serves it, and an idle one ends where another needs its GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.own_head import own_head, run_slice
from benchmarks.prompts import rows_of

#: `max_model_len` of each slice's engine, in order.
LIMITS = (4096, 2048, 8192, 4096)
_LIST = """
import json, ray
from airflow_provider_raydatallm.processor.engines.shared.holdings import holdings_text
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SERVE
ray.init(logging_level="error", log_to_driver=False)
print("ENGINES", json.dumps([f"{e.name}: {e.limit}, {holdings_text(e)}" for e in SERVE.engines()]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--dummy", action="store_true", help="random weights, to measure a model's shape")
    args = parser.parse_args()
    with own_head() as folder:
        for n, limit in enumerate(LIMITS):
            run(folder, args, n, limit)


def run(folder: Path, args: argparse.Namespace, n: int, limit: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows_of("short", args.rows)), folder / "in.parquet")
    kwargs = {"max_model_len": limit, **({"load_format": "dummy"} if args.dummy else {})}
    job: dict[str, Any] = {
        "slice_key": f"{n}",
        "input_path": f"{folder}/in.parquet",
        "output_path": f"{folder}/out",
        "model_source": args.model,
        "prompt": "What is this text about? {text}",
        "sampling_params": {"max_tokens": 32},
        "engine": {"scope": "shared", "kwargs": kwargs},
    }
    began = time.time()
    report = run_slice(job, folder / f"{n}.json")
    listed = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, text=True)
    engines = [line for line in listed.stdout.splitlines() if line.startswith("ENGINES")]
    memory = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.split()
    figures = {
        "seconds": round(time.time() - began, 1),
        "rows": report["counts"]["succeeded"],
        "memory": memory,
        "engines": engines or listed.stderr[-500:],
    }
    print(f"RESULT limit {limit}: {json.dumps(figures)}", flush=True)


if __name__ == "__main__":
    main()
