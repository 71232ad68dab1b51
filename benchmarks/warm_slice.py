"""One slice: with its own engine, with a running shared engine, and by a bare script on the same deployment.

Goals for 1,000 rows: at most 0.25 of a cold slice, and at most 1.3 times the bare script. Runs the real
operator and vLLM on CPUs with the demo's tiny model, alternating, on one embedded head. The script is a Ray
job as well: it reads, applies the chat template, tokenizes, calls the deployment and writes Parquet, without
checkpoints, checks or a report. Its time ends with its table written, the operator's when `execute` returns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.runs import by_operator, by_script
from benchmarks.table import Figure, say, show

ROWS = int(os.environ.get("BENCH_WARM_ROWS", 1000))
ROUNDS = int(os.environ.get("BENCH_WARM_ROUNDS", 3))
GOAL_OF_COLD = 0.25
GOAL_OF_SCRIPT = 1.3
_PARAMS = {"temperature": 0, "max_tokens": 16}


def run() -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.clusters.embedded.head import ensure_head, stop_head
    from tests.support.tiny_model import tiny_model

    taken: dict[str, list[float]] = {"cold": [], "warm": [], "script": []}
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = f"{folder}/head"
        os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
        pq.write_table(
            pa.table({"name": [f"Company number {n}" for n in range(ROWS)]}), f"{folder}/in.parquet"
        )
        model = str(tiny_model())
        ensure_head()
        try:
            taken["cold"].append(_by_operator(folder, model, "slice"))
            _by_operator(folder, model, "shared")  # starts the engine
            for turn in range(ROUNDS):
                for way in ("warm", "script") if turn % 2 == 0 else ("script", "warm"):
                    by = _by_script if way == "script" else _by_operator
                    taken[way].append(by(folder, model, "shared"))
        finally:
            stop_head()
    warm, script, cold = (statistics.median(taken[way]) for way in ("warm", "script", "cold"))
    of_cold, of_script = warm / cold, warm / script
    return show(
        [
            Figure(f"{ROWS:,} rows, an engine of its own", _spread(taken["cold"])),
            Figure("... a running shared engine", _spread(taken["warm"])),
            Figure("... a bare script on the same engine", _spread(taken["script"])),
            Figure("of a cold slice", f"{of_cold:.2f}", f"<= {GOAL_OF_COLD}", of_cold <= GOAL_OF_COLD),
            Figure("of the script", f"{of_script:.2f}", f"<= {GOAL_OF_SCRIPT}", of_script <= GOAL_OF_SCRIPT),
        ]
    )  # fmt: skip


def _by_operator(folder: str, model: str, scope: str) -> float:
    seconds, result = by_operator(
        slice_key="2026-01-31",
        input_path=f"{folder}/in.parquet",
        output_path=f"{folder}/out-{uuid.uuid4().hex[:6]}",
        prompt="What industry is this company in: {name}",
        model_source=model,
        sampling_params=_PARAMS,
        engine__kwargs={"max_model_len": 256},
        engine__scope=scope,
        engine__deduplicate=False,  # as the script
    )
    assert (result["outcome"], result["counts"]["succeeded"]) == ("published", ROWS), result
    say(f"{scope}: {seconds:.1f} s, {result['seconds']}")
    return seconds


def _by_script(folder: str, model: str, scope: str) -> float:
    import pyarrow.parquet as pq

    table = Path(folder, uuid.uuid4().hex[:6])
    done = table.with_suffix(".done")
    paths = (f"{folder}/in.parquet", model, str(table), str(done))
    seconds = by_script("benchmarks.warm_slice", *paths, done=done)
    assert pq.read_table(table).num_rows == ROWS
    say(f"script: {seconds:.1f} s")
    return seconds


class _Deployment:
    """Answers batches by the shared deployment, several at once."""

    def __init__(self, model: str, app: str, user: str) -> None:
        from ray import serve
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._handle = serve.get_app_handle(app).options(method_name="generate", stream=True)
        self._user = user

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        import pyarrow as pa

        names = list(batch["name"])
        tokens = [
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": f"What industry is this company in: {name}"}],
                add_generation_prompt=True,
                return_dict=False,
            )
            for name in names
        ]
        requests = pa.table(
            {
                "row": pa.array(range(len(names)), pa.int64()),
                "tokens": pa.array(tokens, pa.list_(pa.int32())),
                "params": [json.dumps(_PARAMS)] * len(names),
            }
        )
        async for group in self._handle.remote(requests, uuid.uuid4().hex, self._user):
            rows = group.column("row").to_pylist()
            yield {"name": [names[row] for row in rows], "text": group.column("text").to_pylist()}


def script(source: str, model: str, target: str, done: str) -> None:
    import ray
    from ray.data import ActorPoolStrategy

    from airflow_provider_raydatallm.processor.engines.shared import serve_apps

    ray.init(logging_level="warning")
    (engine,) = serve_apps.SERVE.engines()
    _, user = serve_apps.SERVE.register_user(engine.name, "script")
    rows = ray.data.read_parquet(source)
    answers = rows.map_batches(
        _Deployment,
        fn_constructor_args=(model, engine.name, user),
        batch_size=256,
        compute=ActorPoolStrategy(size=1),
    )
    answers.write_parquet(target)
    Path(done).touch()


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"


if __name__ == "__main__":
    script(*sys.argv[1:])
