"""CPU time per answer of checking it and making columns of it, by its shape.

It is spent in feeders, on CPUs, while the engine goes on. The share is that of a core for one GPU at its best
rate for short structured answers (`docs/benchmarks.md`).
"""

from __future__ import annotations

import json
import time
from typing import Any

from benchmarks.table import Figure, show
from tests.support.slice_jobs import spec

_ANSWERS = 2_000
_REPEATS = 10
_ROWS_PER_S = 484
_SCHEMA = {
    "type": "object",
    "properties": {
        "industry": {"enum": ["A", "B"]},
        "score": {"type": "number", "maximum": 10},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    "required": ["industry"],
}
_RECORDS = [
    json.dumps({"industry": "A", "score": 3.5, "tags": ["x", "y"], "inner": {"n": n}})
    for n in range(_ANSWERS)
]
_SHAPES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "text": (_RECORDS, {}),
    "choices": (["A"] * _ANSWERS, {"choices": ["A", "B"]}),
    **{
        f"output_schema, {mode}": (_RECORDS, {"output_schema": _SCHEMA, "output_mode": mode})
        for mode in ("json", "struct", "columns")
    },
    "regex": (["no 12345"] * _ANSWERS, {"regex": "yes|no [0-9]+"}),
    "grammar": (["no 12345"] * _ANSWERS, {"grammar": 'root ::= "yes" | "no " [0-9]+'}),
}


def run() -> bool:
    figures = []
    for shape, (texts, arguments) in _SHAPES.items():
        seconds = _seconds_per_answer(texts, arguments)
        measured = f"{seconds * 1e6:.1f} us, {seconds * _ROWS_PER_S:.1%} of a core at {_ROWS_PER_S} rows/s"
        figures.append(Figure(shape, measured))
    return show(figures)


def _seconds_per_answer(texts: list[str], arguments: dict[str, Any]) -> float:
    import pyarrow as pa

    from airflow_provider_raydatallm.processor.engines.base import answer_table
    from airflow_provider_raydatallm.processor.request.answers.shape import TextParser

    job = spec(slice_key="x", input_path="/in", output_path="/out", model_source="m", prompt="x", **arguments)
    n = len(texts)
    requests = pa.table({"__unit": pa.array([0] * n, pa.int32()), "__offset": range(n)})
    answers = answer_table(requests, text=texts, finish_reason=["stop"] * n, finished_at=[0.0] * n)
    parse, best = TextParser(job, None), float("inf")
    for _ in range(_REPEATS):
        began = time.thread_time()
        rows, _ = parse(answers)
        best = min(best, time.thread_time() - began)
        assert rows.num_rows == n
    return best / n
