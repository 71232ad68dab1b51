"""What checkpoints cost: rows/s of a slice against the same Ray Data pipeline that keeps none.

Both read the same units, make the same requests, have them answered by the same engine actor and shape the
answers; then one hands them to the fragment writers, the other ends in `Dataset.write_parquet`. The engine is
a stub of a real one's pace: 1 ms of computing a row, which is what vLLM's engine process takes on CPUs and
about what its loop takes beside a GPU. The cores are few, so that what checkpoints compute is taken from it.

Measured is the steady state, rows after the first batch by the time from the first batch leaving the engine
to the last; goal: the ratio is at least 0.98, median of interleaved pairs. Other work on the machine spreads
the ratios far more than checkpoints move them, so the writer's own CPU time a row is shown beside it. The
whole time is shown too: the slice's has planning, lease, publishing and the input beside the answers in it,
of which the other has none.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.plan import make_plan
from airflow_provider_raydatallm.processor.request.answer_shape import AnswerParser
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.sizing.sizes import light_tasks, read_tasks
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.processor.store.fragments import FragmentWriter
from benchmarks.embedded import local_ray
from benchmarks.fresh import fresh
from benchmarks.paced import Departures, Paced
from benchmarks.table import Figure, say, show
from tests.support.stub_engine import answer

ROWS = int(os.environ.get("BENCH_COST_ROWS", 20_000))
PAIRS = int(os.environ.get("BENCH_COST_PAIRS", 5))
#: "asleep" for an engine that leaves the cores to the others.
ENGINE = os.environ.get("BENCH_COST_ENGINE", "busy")
GOAL = 0.98

_CPUS = 8


def run() -> bool:
    pairs = fresh(measure_pairs).result
    ratios, plain, ours = ([p[k] for p in pairs] for k in ("ratio", "plain", "ours"))
    ratio = statistics.median(ratios)
    figures = [
        Figure(
            f"rows/s with checkpoints : without, {len(pairs)} pairs", f"{ratio:.3f}", f">= {GOAL}",
            ratio >= GOAL,
        ),
        Figure("... each", ", ".join(f"{r:.3f}" for r in sorted(ratios))),
    ]  # fmt: skip
    for name, runs in (("with checkpoints", ours), ("plain write_parquet", plain)):
        rate, whole = (statistics.median(r[k] for r in runs) for k in ("rows_per_s", "seconds"))
        figures += [
            Figure(f"{name}: steady state", f"{rate:.0f} rows/s"),
            Figure("... whole time", f"{whole:.1f} s"),
        ]
    cpu = fresh(measure_writer).result
    figures.append(Figure("the writer's own CPU time, of 1,000 us a row", f"{cpu * 1e6:.1f} us a row"))
    return show(figures)


def measure_writer() -> float:
    """CPU seconds a row of putting the answers, batch by batch, as fragments of 20 batches."""
    job = _job("/unused")
    table = pa.table(
        {
            "__unit": pa.array([0] * 128, pa.int32()), "__offset": pa.array(range(128), pa.int64()),
            "__request": ['{"messages": [{"content": "Who is customer 1?"}], "sampling_params": {}}'] * 128,
        }
    )  # fmt: skip
    rows, _ = AnswerParser(job, None)(answer(table))
    offsets = rows.schema.get_field_index("__offset")
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        writer = FragmentWriter(folder, "v", ["0" * 16], epoch=1)
        began = time.process_time()
        for i in range(ROWS // 128):
            ids = pa.array(range(i * 128, (i + 1) * 128), pa.int64())
            writer.add("rows", rows.set_column(offsets, "__offset", ids))
            if i % 20 == 19:
                writer.flush()
        writer.close()
        return (time.process_time() - began) / ROWS


def measure_pairs() -> list[dict[str, Any]]:
    pairs = []
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder, local_ray(Path(folder), _CPUS):
        root = Path(folder)
        _write(root / "in")
        for i in range(-1, PAIRS):  # the first one is for Ray's workers to start
            kinds = [("ours", run_slice_once), ("plain", run_plain_once)]
            pair = {name: _timed(root, measured) for name, measured in (kinds if i % 2 else kinds[::-1])}
            pair["ratio"] = pair["ours"]["rows_per_s"] / pair["plain"]["rows_per_s"]
            rates = ", ".join(f"{n} {pair[n]['rows_per_s']:.0f} rows/s" for n in ("ours", "plain"))
            say(f"{f'pair {i + 1}' if i >= 0 else 'warming up'}: {rates}, ratio {pair['ratio']:.3f}")
            pairs.append(pair)
    return pairs[1:]


def _timed(root: Path, measured: Any) -> dict[str, float]:
    out = root / "run"
    job = _job(str(root / "in"), str(out / "table"))
    out.mkdir()
    began = time.monotonic()
    measured(job)
    seconds = time.monotonic() - began
    (first, rows_of_first), *rest = sorted(Departures(job.output_path).all())
    assert rows_of_first + sum(rows for _, rows in rest) == ROWS
    shutil.rmtree(out)
    return {"seconds": seconds, "rows_per_s": (ROWS - rows_of_first) / (rest[-1][0] - first)}


def _job(input_path: str, output_path: str = "/unused") -> SliceJob:
    return SliceJob(
        slice_key="2026-01-31",
        input_path=input_path,
        output_path=output_path,
        model_source="stub/stub",
        prompt="Who is {name}?",
        engine="benchmarks.paced:Paced",
        engine_kwargs={"seconds_per_row": 0.001, "busy": ENGINE == "busy"},
    )


def run_slice_once(job: SliceJob) -> None:
    report = run_slice(job, lambda said: None)
    assert report.counts.succeeded == ROWS


def run_plain_once(job: SliceJob) -> None:
    """The processor's pipeline, step for step, without its writers."""
    import ray
    from ray.data import TaskPoolStrategy

    plan = make_plan(job)
    builder = RequestBuilder(plan.columns, prompt=job.prompt)
    engine = Paced(job, plan.rows)
    light: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    tasks = read_tasks(len(plan.units), _CPUS)
    work = [{"index": i, "spans": [(0, u.rows)]} for i, u in enumerate(plan.units)]
    requests = ray.data.from_items(work, override_num_blocks=tasks).map_batches(
        _Read(RequestReader(plan, builder, carry_row=False)).__call__,
        compute=TaskPoolStrategy(min(tasks, light_tasks(_CPUS))),
        **light,
    )
    answers = engine.answer_requests(
        requests.repartition(target_num_rows_per_block=engine.batch_size)
    ).map_batches(
        _Shape(AnswerParser(job, None)).__call__, compute=TaskPoolStrategy(light_tasks(_CPUS)), **light
    )
    answers.write_parquet(job.output_path)
    assert pq.read_table(job.output_path).num_rows == ROWS


class _Read:
    def __init__(self, make_requests: RequestReader) -> None:
        self._make_requests = make_requests

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        for item in batch.to_pylist():
            spans: Sequence[Any] = item["spans"]
            for requests, _ in self._make_requests(item["index"], spans):
                yield requests


class _Shape:
    def __init__(self, shape: AnswerParser) -> None:
        self._shape = shape

    def __call__(self, answers: pa.Table) -> pa.Table:
        return self._shape(answers)[0]


def _write(folder: Path) -> None:
    folder.mkdir()
    each = ROWS // 10
    for i in range(10):
        names = [f"customer {n}" for n in range(i * each, (i + 1) * each)]
        pq.write_table(pa.table({"name": names, "note": ["x" * 50] * each}), folder / f"{i}.parquet")
