"""Labels compared in a token beside labels that a grammar has the model write: one engine, the same rows.

The demo's model and customers; also with labels that begin alike, which take more than one request. Whole
slices have more in common (reading, publishing), and differ less.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.table import Figure, show
from tests.support.slice_jobs import spec

ROWS = int(os.environ.get("BENCH_LABELS_ROWS", 4_000))
ROUNDS = 4
GOAL = 1.3
#: How labels are found.
WAYS: dict[str, dict[str, Any]] = {
    "written by a grammar": {"labels__exact": True},
    "compared": {},
    "compared, with confidence": {"labels__confidence": True},
}


def label_sets() -> dict[str, list[str]]:
    from demo.customers import LABELS

    first, *others = LABELS
    return {
        "labels": [*LABELS],
        "two begin alike": [f"{first} (large)", f"{first} (small)", *others],
        "all begin alike": [f"{'AB'[i % 2]}: {label}" for i, label in enumerate(LABELS)],
    }


def run() -> bool:
    return asyncio.run(_run())


async def _run() -> bool:
    from airflow_provider_raydatallm.processor.engines.vllm.worker.worker import VllmWorker
    from tests.support.tiny_model import tiny_model

    # As an eager worker on CPUs has it (`engine_base`).
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
    model = str(tiny_model())
    arguments = {"model": model, "enforce_eager": True, "max_model_len": 256, "disable_log_stats": True}
    worker = VllmWorker(arguments)
    figures: list[Figure] = []
    try:
        for name, labels in label_sets().items():
            figures += await _compare(worker, model, name, labels, GOAL if name == "labels" else None)
    finally:
        worker.kill_processes()
    return show(figures)


async def _compare(
    worker: Any, model: str, name: str, labels: Sequence[str], goal: float | None
) -> list[Figure]:
    rows = {way: _requests(model, labels, fields) for way, fields in WAYS.items()}
    seconds: dict[str, list[float]] = {way: [] for way in rows}
    cpu_seconds: dict[str, list[float]] = {way: [] for way in rows}
    answers = {}
    for _ in range(ROUNDS):
        for way, table in rows.items():
            began, cpu_began = time.monotonic(), _cpu_seconds()
            answers[way] = await _answer(worker, table)
            seconds[way].append(time.monotonic() - began)
            cpu_seconds[way].append(_cpu_seconds() - cpu_began)
    # The first round of each also warms up.
    rate = {way: ROWS / min(times[1:]) for way, times in seconds.items()}
    said = {way: [_label(answer, labels) for answer in answers[way]] for way in rows}
    written, *compared = rows
    figures = []
    for way in rows:
        cpu_ms = 1000 * min(cpu_seconds[way][1:]) / ROWS
        measured = f"{rate[way]:.0f} rows/s, {cpu_ms:.2f} CPU ms and {_tokens(answers[way]):.2f} tokens a row"
        figures.append(Figure(f"{name}: {way}", measured))
    for way in compared:
        ratio = rate[way] / rate[written]
        same = sum(a == b for a, b in zip(said[written], said[way], strict=True)) / ROWS
        result = f"{ratio:.2f} x the grammar; {same:.2%} the same"
        if goal is not None and way == "compared":
            figures.append(Figure(f"... {way}", result, f">= {goal}", ratio >= goal))
        else:
            figures.append(Figure(f"... {way}", result))
    return figures


def _requests(model: str, labels: Sequence[str], fields: dict[str, Any]) -> Any:
    import pyarrow as pa

    from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
    from airflow_provider_raydatallm.processor.request.answers.output_schema import structured_outputs
    from airflow_provider_raydatallm.processor.request.requests import RequestBuilder
    from demo.customers import write_customers

    job = spec(
        slice_key="k", input_path="/in", output_path="/out", model_source=model, engine="vllm",
        prompt="What industry is this company in: {Company}", choices=tuple(labels),
        sampling_params={"temperature": 0, "max_tokens": 16}, **fields,
    )  # fmt: skip
    builder = RequestBuilder(
        ["Company"], prompt=job.task.prompt, sampling_params=job.task.sampling,
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


def _cpu_seconds() -> float:
    """Of the worker and its engine. By the clock, other work of the machine counts, too."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True)))


def _label(answer: dict[str, Any], labels: Sequence[str]) -> str:
    if (numbers := answer["numbers"]) is None:
        return str(answer["text"])
    return labels[max(range(len(numbers)), key=numbers.__getitem__)]


def _tokens(answers: list[dict[str, Any]]) -> float:
    return sum(answer["output_tokens"] for answer in answers) / len(answers)


if __name__ == "__main__":
    run()
