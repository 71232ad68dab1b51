"""Labels compared in a token beside labels that a grammar has the model write: one engine, the same rows.

The demo's model and customers. Whole slices have more in common (reading, publishing), and differ less.
"""

from __future__ import annotations

import asyncio
import csv
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import Figure, show

ROWS = int(os.environ.get("BENCH_LABELS_ROWS", 4_000))
ROUNDS = 4
GOAL = 1.3


def run() -> bool:
    return asyncio.run(_run())


async def _run() -> bool:
    from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker
    from demo.customers import LABELS
    from tests.support.tiny_model import tiny_model

    # As an eager worker on CPUs has it (`engine_base`).
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
    model = str(tiny_model())
    rows = {is_exact: _requests(model, is_exact) for is_exact in (True, False)}
    arguments = {"model": model, "enforce_eager": True, "max_model_len": 256, "disable_log_stats": True}
    worker = VllmWorker(arguments)
    try:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        answers = {}
        for _ in range(ROUNDS):
            for is_exact, table in rows.items():
                began = time.monotonic()
                answers[is_exact] = await _answer(worker, table)
                seconds[is_exact].append(time.monotonic() - began)
    finally:
        worker.kill_processes()
    written = [answer["text"] for answer in answers[True]]
    compared = [LABELS[_largest(answer["numbers"])] for answer in answers[False]]
    agreeing = sum(a == b for a, b in zip(written, compared, strict=True)) / ROWS
    # The first round of each also warms up.
    rate = {is_exact: ROWS / min(times[1:]) for is_exact, times in seconds.items()}
    ratio = rate[False] / rate[True]
    measured = {e: f"{rate[e]:.0f} rows/s, {_tokens(answers[e]):.2f} tokens a row" for e in rate}
    return show(
        [
            Figure("labels written by a grammar", measured[True]),
            Figure("labels compared", measured[False]),
            Figure("... ratio", f"{ratio:.2f}", f">= {GOAL}", ratio >= GOAL),
            Figure("... rows with the same label", f"{agreeing:.2%}"),
        ]
    )  # fmt: skip


def _requests(model: str, is_exact: bool) -> Any:
    import json

    import pyarrow as pa

    from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
    from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
    from airflow_provider_raydatallm.processor.request.answers.output_schema import structured_outputs
    from airflow_provider_raydatallm.processor.request.requests import RequestBuilder
    from demo.customers import LABELS, write_customers

    job = SliceJob(
        slice_key="k", input_path="/in", output_path="/out", model_source=model, engine="vllm",
        prompt="What industry is this company in: {Company}", choices=tuple(LABELS), exact_labels=is_exact,
        sampling_params={"temperature": 0, "max_tokens": 16},
    )  # fmt: skip
    builder = RequestBuilder(
        ["Company"], prompt=job.prompt, sampling_params=job.sampling_params,
        structured_outputs=structured_outputs(job),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        [path] = write_customers(Path(folder), ["2026-01-01"], ROWS)
        with open(path, newline="") as file:
            requests = [json.dumps(builder.build(row)) for row in csv.DictReader(file)]
    tokenized = PromptTokenizer(job)(requests)
    return pa.table({
        "row": pa.array(range(len(tokenized)), pa.int32()),
        "tokens": [list(request.tokens) for request in tokenized],
        "params": [request.params for request in tokenized],
    })  # fmt: skip


async def _answer(worker: Any, rows: Any) -> list[dict[str, Any]]:
    answers = [answer async for group in worker.generate(rows) for answer in group.to_pylist()]
    return sorted(answers, key=lambda answer: int(answer["row"]))


def _largest(numbers: Sequence[float]) -> int:
    return max(range(len(numbers)), key=numbers.__getitem__)


def _tokens(answers: list[dict[str, Any]]) -> float:
    return sum(answer["output_tokens"] for answer in answers) / len(answers)


if __name__ == "__main__":
    run()
