"""Cost of checkpoints: rows/s of a slice compared with the same Ray Data pipeline without checkpoints.

Both read the same units, build the same requests, use the same engine actor and parse the answers. Then one
hands them to the fragment writers; the other ends in `Dataset.write_parquet`. The engine is a stub with a
real engine's pace: 1 ms of computing a row, as vLLM's engine process takes on CPUs and about as much as its
loop takes beside a GPU. There are few cores, so checkpoint work competes with it.

Measures the steady state: rows after the first batch, divided by the time from the first batch leaving the
engine to the last. Goal: a ratio of at least 0.98, median of interleaved pairs. Other work on the machine
spreads the ratios far more than checkpoints do, so the writer's own CPU time per row is shown too. The whole
time is shown as well: the slice's includes planning, lease and publishing, which the other does not do.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.sizing.sizes import light_tasks, read_tasks
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.processor.store.fragments import FragmentWriter
from benchmarks.embedded import local_ray
from benchmarks.fresh import fresh
from benchmarks.paced import Departures, Paced
from benchmarks.table import Figure, say, show
from tests.support.slice_jobs import spec
from tests.support.stub_engine import answer

ROWS = int(os.environ.get("BENCH_COST_ROWS", 20_000))
PAIRS = int(os.environ.get("BENCH_COST_PAIRS", 5))
#: "asleep": an engine that leaves the cores to other processes.
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
    figures.append(Figure("the writer's own CPU time (engine: 1,000 us a row)", f"{cpu * 1e6:.1f} us a row"))
    return show(figures)


def measure_writer() -> float:
    """Returns CPU seconds per row for writing answers batch by batch, as fragments of 20 batches."""
    job = _job("/unused")
    table = pa.table(
        {
            "__unit": pa.array([0] * 128, pa.int32()), "__offset": pa.array(range(128), pa.int64()),
            "__request": ['{"messages": [{"content": "Who is customer 1?"}], "sampling_params": {}}'] * 128,
        }
    )  # fmt: skip
    rows, _ = TextParser(job, None)(answer(table))
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
        for i in range(-1, PAIRS):  # the first pair starts Ray's workers
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
    (first, rows_of_first), *rest = sorted(Departures(job.output_path).read())
    assert rows_of_first + sum(rows for _, rows in rest) == ROWS
    shutil.rmtree(out)
    return {"seconds": seconds, "rows_per_s": (ROWS - rows_of_first) / (rest[-1][0] - first)}


def _job(input_path: str, output_path: str = "/unused") -> SliceJob:
    return spec(
        slice_key="2026-01-31",
        input_path=input_path,
        output_path=output_path,
        model_source="stub/stub",
        prompt="Who is {name}?",
        engine="benchmarks.paced:Paced",
        engine__kwargs={"seconds_per_row": 0.001, "busy": ENGINE == "busy"},
    )


def run_slice_once(job: SliceJob) -> None:
    report = run_slice(job, lambda progress: None)
    assert report.counts.succeeded == ROWS


def run_plain_once(job: SliceJob) -> None:
    """Runs the processor's pipeline step for step, without its writers."""
    import ray
    from ray.data import TaskPoolStrategy

    plan = make_plan(job)
    builder = RequestBuilder(plan.columns, prompt=job.task.prompt)
    engine = Paced(job, plan.rows)
    light: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    tasks = read_tasks(len(plan.units), _CPUS)
    work = [{"index": i, "spans": [(0, u.rows)]} for i, u in enumerate(plan.units)]
    requests = ray.data.from_items(work, override_num_blocks=tasks).map_batches(
        _Read(RequestReader(plan, builder, carry_row=False)).__call__,
        compute=TaskPoolStrategy(min(tasks, light_tasks(_CPUS))),
        **light,
    )
    requests = requests.repartition(target_num_rows_per_block=engine.batch_size)
    engine.answer_requests(requests, _ParsedAnswers(TextParser(job, None))).write_parquet(job.output_path)
    assert pq.read_table(job.output_path).num_rows == ROWS


class _Read:
    def __init__(self, make_requests: RequestReader) -> None:
        self._make_requests = make_requests

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        for item in batch.to_pylist():
            for requests, _ in self._make_requests(item["index"], np.array(item["spans"])):
                yield requests


class _ParsedAnswers:
    """Passes parsed answers on instead of handing them to writers."""

    def __init__(self, parser: TextParser) -> None:
        self._parser = parser

    def __call__(self, answers: pa.Table) -> pa.Table:
        return self._parser(answers)[0]

    def deliver_blocks(self, answers: Any) -> Any:
        from ray.data import TaskPoolStrategy

        tasks = TaskPoolStrategy(light_tasks(_CPUS))
        return answers.map_batches(self.__call__, compute=tasks, batch_size=None, batch_format="pyarrow")


def _write(folder: Path) -> None:
    folder.mkdir()
    each = ROWS // 10
    for i in range(10):
        names = [f"customer {n}" for n in range(i * each, (i + 1) * each)]
        pq.write_table(pa.table({"name": names, "note": ["x" * 50] * each}), folder / f"{i}.parquet")
