"""Planning a large slice, and resuming it when 90% is done.

* The plan of 100 million rows in 1,000 Parquet files (10,000 row groups; reads footers only).
* A run of that slice with 90% in fragments, one unit in part: from the start of the driver's work to the
  first answers of missing rows. The driver is a real one, on a local Ray with a stub engine.

Goals: under 60 s and under 1 GB in the driver, each. For comparison, at 5 million rows: the same with Ray
Data's own checkpointing (`CheckpointConfig`), which gets the ids of the finished rows; same table and engine.
Memory is the resident peak of the driver, and of all of Ray's workers together (without the shared object
store). No time includes Ray's own start.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh, resident_mb
from benchmarks.table import Figure, say, show
from tests.support.slice_jobs import spec

ROWS = int(os.environ.get("BENCH_PLAN_ROWS", 100_000_000))
ROWS_BESIDE_RAY = int(os.environ.get("BENCH_PLAN_ROWS_BESIDE_RAY", 5_000_000))
GOAL_SECONDS = 60
GOAL_MB = 1024

_FILE_ROWS, _GROUP_ROWS = 100_000, 10_000
_DONE = 0.9


def run() -> bool:
    figures = []
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        files = ROWS // _FILE_ROWS
        say(f"writing {files:,} files of {_FILE_ROWS:,} rows")
        _link_files(Path(folder), files)
        say("planning")
        plan = fresh(plan_it, folder)
        assert plan.result["rows"] == ROWS, plan
        figures += _goals(f"plan {ROWS:,} rows in {files:,} files", plan.result["seconds"], plan.peak_mb)
        say(f"writing the fragments of {_DONE:.0%} of the rows")
        fresh(finish_most, folder)
        say("resuming")
        ours = fresh(resume, folder)
        figures += _goals(f"resume at {_DONE:.0%}, to the first row", ours.result["first"], ours.peak_mb)
        figures += _steps(ours.result)
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        say(f"the same with {ROWS_BESIDE_RAY:,} rows, then Ray's CheckpointConfig")
        _write_ids(Path(folder))
        fresh(finish_most, folder)
        ours, theirs = fresh(resume, folder), fresh(resume_with_ray, folder)
        for name, run in (("this provider", ours), ("CheckpointConfig", theirs)):
            first, start_mb, workers_mb = (run.result[key] for key in ("first", "start_mb", "workers_mb"))
            figures += [
                Figure(f"{ROWS_BESIDE_RAY:,} rows, {name}: first row", f"{first:.1f} s"),
                Figure("... driver", f"{run.peak_mb:.0f} MB, {run.peak_mb - start_mb:+.0f} MB"),
                Figure("... all workers", f"{workers_mb:.0f} MB"),
            ]
    return show(figures)


def _goals(what: str, seconds: float, peak_mb: float) -> list[Figure]:
    return [
        Figure(what, f"{seconds:.1f} s", f"< {GOAL_SECONDS} s", seconds < GOAL_SECONDS),
        Figure("... driver's memory", f"{peak_mb:.0f} MB", f"< {GOAL_MB} MB", peak_mb < GOAL_MB),
    ]


def _steps(result: dict[str, Any]) -> list[Figure]:
    return [Figure(f"... at {seconds:.1f} s", step) for step, seconds in result["steps"]]


def plan_it(folder: str) -> dict[str, Any]:
    from airflow_provider_raydatallm.processor.input.survey import make_plan

    began = time.monotonic()
    plan = make_plan(_job(folder))
    return {"seconds": time.monotonic() - began, "rows": plan.rows}


def finish_most(folder: str) -> None:
    """Writes what a run leaves when it dies at 90%: the plan, and a fragment for each unit but the last."""
    import pyarrow as pa

    from airflow_provider_raydatallm.contract.fingerprint import fingerprint
    from airflow_provider_raydatallm.processor.input.survey import make_plan
    from airflow_provider_raydatallm.processor.storage.store import Store
    from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
    from airflow_provider_raydatallm.processor.store.fragments import put_fragment

    class Unsynced(Store):
        """Writes without fsync: this part is not measured."""

        def put(self, name: str, data: bytes) -> None:
            Path(self.path(name)).write_bytes(data)

    job = _job(folder)
    plan, store = make_plan(job), Unsynced(job.paths.metadata)
    checkpoint = Checkpoint(store, fingerprint(job))
    checkpoint.save_plan(plan)
    ids = [u.id for u in plan.units]
    last = int(len(ids) * _DONE)
    logged = time.monotonic()
    for index in range(last + 1):
        rows = _GROUP_ROWS if index < last else _GROUP_ROWS // 3  # one unit is partly done
        table = pa.table(
            {
                "__unit": pa.array([index] * rows, pa.int32()),
                "__offset": pa.array(range(rows), pa.int64()),
                "answer": ["Healthcare"] * rows,
                "__input_tokens": pa.array([7] * rows, pa.int64()),
                "__output_tokens": pa.array([3] * rows, pa.int64()),
            }
        )
        put_fragment(store, checkpoint.folder, "rows", table, ids, epoch=1)
        if time.monotonic() - logged > 15:
            logged = time.monotonic()
            say(f"{index:,} fragments")


class _FirstRowError(Exception):
    """Ends the run at the first answers."""


def resume(folder: str) -> dict[str, Any]:
    from airflow_provider_raydatallm.processor.inference.ray_cluster import RayCluster
    from airflow_provider_raydatallm.processor.slice_run import run_slice
    from benchmarks.embedded import Workers, local_ray

    class UntilFirstRow(RayCluster):
        def run_inference(self, run: Any, on_update: Any) -> None:
            def stop(update: Any) -> None:
                if update.summaries:
                    raise _FirstRowError

            steps.append(("subtracted; to Ray", time.monotonic() - began))
            super().run_inference(run, stop)

    steps: list[tuple[str, float]] = []
    with local_ray(Path(folder)):
        workers = Workers()
        start_mb, began = resident_mb(), time.monotonic()
        try:
            run_slice(
                _job(folder),
                lambda progress: steps.append((progress["step"], time.monotonic() - began)),
                UntilFirstRow(),
            )
        except _FirstRowError:
            first = time.monotonic() - began
        return {"first": first, "steps": steps, "start_mb": start_mb, "workers_mb": workers.peak_mb()}


def resume_with_ray(folder: str) -> dict[str, Any]:
    import ray
    from ray.data import DataContext, TaskPoolStrategy
    from ray.data.checkpoint import CheckpointConfig
    from ray.exceptions import RayTaskError

    from benchmarks.embedded import Workers, local_ray

    marker = Path(folder, "first")
    with local_ray(Path(folder)):
        workers = Workers()
        start_mb, began = resident_mb(), time.time()
        DataContext.get_current().checkpoint_config = CheckpointConfig(
            id_column="id", checkpoint_path=f"{folder}/checkpoint", delete_checkpoint_on_success=False
        )
        answers = ray.data.read_parquet(f"{folder}/in").map_batches(
            _StopAtFirst(marker).__call__, batch_format="pyarrow", compute=TaskPoolStrategy(1)
        )
        try:
            answers.write_parquet(f"{folder}/plain")
        except RayTaskError:
            first = float(marker.read_text()) - began
        return {"first": first, "start_mb": start_mb, "workers_mb": workers.peak_mb()}


class _StopAtFirst:
    """Stands for the engine: records when the first rows arrive, and ends the run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, batch: Any) -> Any:
        if not self.marker.exists():
            self.marker.write_text(str(time.time()))
        raise _FirstRowError


def _job(folder: str) -> Any:
    return spec(
        slice_key="2026-01-31",
        input_path=f"{folder}/in",
        output_path=f"{folder}/out",
        model_source="stub/stub",
        prompt="Who is {name}?",
        engine="tests.support.stub_engine:StubEngine",
        engine__batch_size=2048,
    )


def _link_files(root: Path, count: int) -> None:
    """Links one small file under many names: planning reads only names, sizes and footers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = pa.array(["customer"] * _FILE_ROWS)
    pq.write_table(pa.table({"name": names}), root / "one", row_group_size=_GROUP_ROWS)
    (root / "in").mkdir()
    for i in range(count):
        os.link(root / "one", root / "in" / f"{i:04}.parquet")


def _write_ids(root: Path) -> None:
    """Writes files with ids of 15 hex digits, and the ids of the finished rows for Ray."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "in").mkdir()
    (root / "checkpoint").mkdir()
    done = int(ROWS_BESIDE_RAY // _GROUP_ROWS * _DONE) * _GROUP_ROWS + _GROUP_ROWS // 3
    for first in range(0, ROWS_BESIDE_RAY, _FILE_ROWS):
        # Multiplying by an odd number keeps them distinct and unordered.
        ids = pa.array([f"{n * 0x9E3779B97F4A7C1 % 2**60:015X}" for n in range(first, first + _FILE_ROWS)])
        table = pa.table({"id": ids, "name": ["customer"] * _FILE_ROWS})
        pq.write_table(table, root / "in" / f"{first:010}.parquet", row_group_size=_GROUP_ROWS)
        for start in range(0, _FILE_ROWS, _GROUP_ROWS):
            if (left := min(_GROUP_ROWS, done - first - start)) > 0:
                finished = table.select(["id"]).slice(start, left)
                pq.write_table(finished, root / "checkpoint" / f"{first + start:010}.parquet")
