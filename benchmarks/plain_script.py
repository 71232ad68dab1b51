"""The same work by the operator and by a plain Ray Data LLM script, from submission to the published table.

Goal: the operator takes no longer. Both classify the same companies with the demo's tiny model (vLLM on CPUs)
on one embedded head, in turn, each of the two first as often as the other. The operator's time ends when its
`execute` returns; the script's, which is a Ray job as well, when its table is written. The script is as Ray's
guides have it: batches of 128, one engine, a stage each for the chat template, tokens and text. Without the
latter two, which import torch for little on a machine without GPUs, it is the third line.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.processor.engines.vllm.engine_base import CPU_ENV
from benchmarks.gpu.compare import CPU_ENGINE
from benchmarks.runs import by_operator, by_script
from benchmarks.table import print_rows, say

ROWS = int(os.environ.get("BENCH_PLAIN_ROWS", 2000))
ROUNDS = int(os.environ.get("BENCH_PLAIN_ROUNDS", 3))
GOAL = 1.0


def run() -> bool:
    from airflow_provider_raydatallm.local_ray.head import ensure_head, stop_head
    from benchmarks.demo_work import write_customers_parquet
    from tests.support.tiny_model import tiny_model

    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = f"{folder}/head"
        os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
        arguments = _arguments(folder, str(tiny_model()))
        write_customers_parquet(Path(folder, "in"), ROWS)
        ensure_head()
        try:
            taken = _rounds(arguments)
        finally:
            stop_head()
    least = statistics.median(taken["operator"])
    rows = []
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        rows.append(
            [name, f"{middle:.1f} s", f"{min(seconds):.1f} to {max(seconds):.1f} s", f"{least / middle:.2f}"]
        )
    print_rows([f"{ROWS:,} rows, {ROUNDS} runs each", "median", "spread", "operator takes of it"], rows)
    ratio = least / statistics.median(taken["script"])
    print(
        f"operator / script {ratio:.2f} (goal: at most {GOAL:g}): {'met' if ratio <= GOAL else 'NOT MET'}\n"
    )
    return ratio <= GOAL


def _rounds(arguments: dict[str, Any]) -> dict[str, list[float]]:
    ways = {
        "operator": _by_operator,
        "script": lambda given: _by_script(given, ""),
        "script, two stages less": lambda given: _by_script(given, "--fewer-stages"),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        for name in list(ways) if turn % 2 == 0 else reversed(ways):
            taken[name].append(ways[name](arguments))
            say(f"{name}: {taken[name][-1]:.1f} s")
    return taken


def _arguments(folder: str, model: str) -> dict[str, Any]:
    from demo.customers import LABELS

    return {
        "slice_key": "2026-01-31",
        "input_path": f"{folder}/in",
        "output_path": f"{folder}/out",
        "model_source": model,
        "system_prompt": "You infer a company's industry.",
        "prompt": "What industry is this company in: {name}",
        "choices": list(LABELS),
        "sampling_params": {"temperature": 0, "max_tokens": 16},
        "engine_kwargs": {"max_model_len": 256},
    }


def _by_operator(arguments: dict[str, Any]) -> float:
    output = f"{arguments['output_path']}-{uuid.uuid4().hex[:6]}"
    given = {**arguments, "output_path": output, "deduplicate": False}  # the script answers every row
    took, result = by_operator(**given, engine_scope="slice")  # and starts an engine of its own
    assert (result["outcome"], result["counts"]["succeeded"]) == ("published", ROWS), result
    say(f"operator's own account: {result['seconds']}, {result['throughput']['rows_per_s']} rows/s")
    return took


def _by_script(arguments: dict[str, Any], option: str) -> float:
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.contract.spec import SliceJob

    name = f"script-{uuid.uuid4().hex[:6]}"
    table, done = Path(arguments["output_path"], name), Path(f"{arguments['output_path']}-{name}.done")
    spec = Path(f"{done}.spec.json")
    spec.write_text(SliceJob(**{**arguments, "output_path": str(table)}).model_dump_json())
    took = by_script("benchmarks.plain_script", str(spec), str(done), option, done=done)
    assert pq.read_table(table).num_rows == ROWS
    return took


def script(spec: str, done: str, option: str) -> None:
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    from airflow_provider_raydatallm.contract.spec import SliceJob

    job = SliceJob.model_validate_json(Path(spec).read_text())
    ray.init(logging_level="warning")
    stages = {"tokenize_stage": False, "detokenize_stage": False} if option else {}
    config = vLLMEngineProcessorConfig(
        model_source=job.model_source,
        # What this machine has instead of a GPU, and the engine that suits it.
        engine_kwargs={**CPU_ENGINE, **job.engine_kwargs},
        placement_group_config={"bundles": [{"CPU": 1}]},
        runtime_env={"env_vars": CPU_ENV},
        concurrency=1,
        batch_size=128,
        **stages,
    )
    question = {"structured_outputs": {"choice": list(job.choices or ())}, **job.sampling_params}
    process = build_processor(
        config,
        preprocess=lambda row: {
            "messages": [
                {"role": "system", "content": job.system_prompt},
                {"role": "user", "content": (job.prompt or "").replace("{name}", row["name"])},
            ],
            "sampling_params": question,
        },
        postprocess=lambda row: {"id": row["id"], "name": row["name"], "answer": row["generated_text"]},
    )
    process(ray.data.read_parquet(job.input_path)).write_parquet(job.output_path)
    Path(done).touch()


if __name__ == "__main__":
    script(*sys.argv[1:])
