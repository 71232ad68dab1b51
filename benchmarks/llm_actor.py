"""What Ray Data LLM's engine actor spends on a row: its one thread is what a large GPU waits for.

Plain Ray Data LLM, as it comes and with vLLM's export of metrics to Ray off, as the provider has it (and with
one output object for a row). CPU seconds of the actor's process, without those of vLLM's own, on the demo's
tiny model; each run a process of its own, in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.processor.engines.vllm.engine_base import CPU_ENV
from benchmarks.embedded import local_ray
from benchmarks.gpu.compare import CPU_ENGINE
from benchmarks.table import print_rows, say

ROWS = int(os.environ.get("BENCH_ACTOR_ROWS", 16_000))
ROUNDS = int(os.environ.get("BENCH_ACTOR_ROUNDS", 2))
_BATCH = 256


def run() -> None:
    from benchmarks.fresh import ROOT
    from tests.support.tiny_model import tiny_model

    model = str(tiny_model())
    found: dict[str, list[dict[str, float]]] = {"plain": [], "without metrics": []}
    for turn in range(ROUNDS):
        for name in list(found) if turn % 2 == 0 else reversed(found):
            command = [sys.executable, "-m", "benchmarks.llm_actor", model, name]
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            say(f"{name}: {found[name][-1]}")
    rows = [
        [name, *(f"{statistics.median(one[key] for one in runs):,.0f}" for key in ("rows_per_s", "us"))]
        for name, runs in found.items()
    ]
    print_rows([f"{ROWS:,} rows", "rows/s", "microseconds of the actor for a row"], rows)


def measure(model: str, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder, local_ray(Path(folder), cpus=12):
        _measure(model, name)


def _measure(model: str, name: str) -> None:
    import pyarrow as pa
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    kwargs: dict[str, Any] = {**CPU_ENGINE, "max_model_len": 128}
    options: dict[str, Any] = {}
    if name != "plain":
        kwargs |= {"stream_interval": 4096, "disable_log_stats": True}
        options["log_engine_metrics"] = False
    config = vLLMEngineProcessorConfig(
        model_source=model,
        engine_kwargs=kwargs,
        concurrency=1,
        batch_size=_BATCH,
        placement_group_config={"bundles": [{"CPU": 1}]},
        runtime_env={"env_vars": CPU_ENV},
        **options,
    )
    process = build_processor(
        config,
        preprocess=lambda row: {
            "messages": [{"role": "user", "content": f"Industry of {row['name']}?"}],
            "sampling_params": {"temperature": 0, "max_tokens": 16, "ignore_eos": True},
        },
        postprocess=lambda row: {"text": row["generated_text"]},
    )
    table = pa.table({"name": [f"Company number {i}" for i in range(ROWS)]})
    rows = ray.data.from_arrow(table).repartition(ROWS // _BATCH)
    actor = _Actor()
    done = 0
    for batch in process(rows).iter_batches(batch_size=None, prefetch_batches=0):
        done += len(batch["text"])
        actor.note(done)
    (start, cpu, first), (stop, cpu_then, last) = actor.notes[0], actor.notes[-1]
    answered = last - first
    figures = {
        "rows_per_s": round(answered / (stop - start)),
        "us": round((cpu_then - cpu) / answered * 1e6),
    }
    print(json.dumps(figures), flush=True)


class _Actor:
    """CPU seconds of the engine's actor, at times."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, float, int]] = []
        self._cpu = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def note(self, rows: int) -> None:
        self.notes.append((time.time(), self._cpu, rows))

    def _watch(self) -> None:
        import psutil

        mine = None
        while True:
            time.sleep(0.1)
            if mine is None:
                named = (p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"])
                mine = next((p for p in named if "vLLMEngineStage" in " ".join(p.info["cmdline"])), None)
            else:
                try:
                    times = mine.cpu_times()
                except psutil.Error:
                    return
                self._cpu = times.user + times.system


if __name__ == "__main__":
    assert Path(sys.argv[1]).is_dir()
    measure(*sys.argv[1:])
