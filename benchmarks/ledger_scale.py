"""Resuming a slice that is mostly finished: listing and reading its ledger, and subtracting it from the plan.

Fragments are read by their names (`contiguous`: each holds one range of one unit), or by their first bytes
(`mixed`: rows of four units; `scattered`: rows that finished in any order, so that nearly each one is a range
of its own). They are real files on the local disk, in the page cache, as after a run that died just before.

The scattered case is smaller than the slice that it stands for, and extrapolated: its time grows with its
rows, and its memory as it does from half of them to all.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState
from airflow_provider_raydatallm.processor.store.fragments import put_fragment
from benchmarks.fresh import fresh, resident_mb
from benchmarks.table import Figure, say, show
from tests.support.slice_jobs import spec

FRAGMENTS = int(os.environ.get("BENCH_FRAGMENTS", 100_000))
SCATTERED_FRAGMENTS = int(os.environ.get("BENCH_SCATTERED", 20_000))
GOAL_SECONDS = 60
#: Of the slice to which the scattered case is extrapolated.
LARGE_ROWS = 100_000_000
LARGE_GOAL_SECONDS, LARGE_GOAL_MB = 90, 2_000


@dataclass(frozen=True)
class _Case:
    """`fragment_rows` of each fragment, of so many units `together`, in any order within `window` of them."""

    fragments: int
    fragment_rows: int
    units: int
    together: int
    window: int = 1

    @property
    def rows(self) -> int:
        return self.fragments * self.fragment_rows

    @property
    def unit_rows(self) -> int:
        """1% more than is finished."""
        return self.rows // self.units * 101 // 100


_CASES = {
    "contiguous": _Case(FRAGMENTS, 100, 1_000, together=1),
    "mixed": _Case(FRAGMENTS, 100, 1_000, together=4),
    **{
        name: _Case(fragments, 1_000, fragments // 50, together=4, window=4)
        for name, fragments in (("half", SCATTERED_FRAGMENTS // 2), ("scattered", SCATTERED_FRAGMENTS))
    },
}


def run() -> bool:
    results: dict[str, dict[str, Any]] = {}
    for name, case in _CASES.items():
        with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
            say(f"writing {case.fragments:,} {name} fragments")
            _write(folder, case)
            run = fresh(subtract, folder, name)
        result = run.result
        assert result["fragments"] == case.fragments, result
        assert result["missing"] == case.unit_rows * case.units - case.rows, result
        results[name] = result
    figures = [figure for name in ("contiguous", "mixed") for figure in _figures(name, results[name])]
    return show([*figures, *_large(results["half"], results["scattered"])])


def _figures(name: str, result: dict[str, Any]) -> list[Figure]:
    seconds = result["seconds"]
    return [
        Figure(
            f"{FRAGMENTS:,} {name} fragments, listed and subtracted", f"{seconds:.1f} s",
            f"< {GOAL_SECONDS} s", seconds < GOAL_SECONDS,
        ),
        Figure("... of it listed and read", f"{result['listed']:.1f} s"),
        Figure("... memory", f"{result['peak_mb']:.0f} MB"),
    ]  # fmt: skip


def _large(half: dict[str, Any], result: dict[str, Any]) -> list[Figure]:
    case = _CASES["scattered"]
    ranges, times = result["ranges"], LARGE_ROWS / case.rows
    mb_per_range = (result["peak_mb"] - half["peak_mb"]) / (ranges - half["ranges"])
    seconds, mb = result["seconds"] * times, result["peak_mb"] + mb_per_range * ranges * (times - 1)
    return [
        Figure(
            f"{case.fragments:,} scattered fragments, {case.rows:,} rows, {ranges:,} ranges",
            f"{result['seconds']:.1f} s ({result['cpu_s']:.1f} s of CPU)",
        ),
        Figure("... of it listed and read", f"{result['listed']:.1f} s"),
        Figure("... memory", f"{result['peak_mb']:.0f} MB"),
        Figure("... memory for each further range", f"{mb_per_range * 1e6:.0f} bytes"),
        Figure("... time for each row", f"{result['seconds'] / case.rows * 1e9:.0f} ns"),
        Figure(
            f"{LARGE_ROWS:,} rows, {ranges * times:,.0f} ranges, extrapolated", f"{seconds:.0f} s",
            f"< {LARGE_GOAL_SECONDS} s", seconds < LARGE_GOAL_SECONDS,
        ),
        Figure("... memory", f"{mb:.0f} MB", f"< {LARGE_GOAL_MB} MB", mb < LARGE_GOAL_MB),
    ]  # fmt: skip


def subtract(folder: str, name: str) -> dict[str, Any]:
    plan, checkpoint = _plan(folder, _CASES[name]), _checkpoint(folder)
    began, began_cpu = time.monotonic(), time.process_time()
    ledger, _ = checkpoint.read_ledger(plan)
    listed = time.monotonic() - began
    state = CheckpointState(plan, ledger, max_attempts=1)
    missing = state.rows_missing
    seconds = time.monotonic() - began
    assert not state.rows_quarantined
    return {
        "seconds": seconds, "listed": listed, "fragments": ledger.fragments, "missing": missing,
        "ranges": len(ledger.rows.ranges), "peak_mb": resident_mb(peak=True),
        "cpu_s": time.process_time() - began_cpu,
    }  # fmt: skip


def _checkpoint(folder: str) -> Checkpoint:
    return Checkpoint(Store(f"{folder}/out.ray_llm/ds=2026-01-31"), "0" * 16)


def _plan(folder: str, case: _Case) -> Plan:
    """Returns a small file's plan with enlarged row counts."""
    path = Path(folder, "in.parquet")
    if not path.exists():
        pq.write_table(pa.table({"name": ["customer"]}), path)
    plan = make_plan(
        spec(
            slice_key="2026-01-31",
            input_path=str(path),
            output_path=f"{folder}/out",
            model_source="stub/stub",
            prompt="{name}",
        )
    )
    (unit,) = plan.units
    units = tuple(
        replace(
            unit,
            file=replace(unit.file, path=f"{folder}/{i}.parquet", key=f"{i:016x}"),
            range=replace(unit.range, rows=case.unit_rows),
            rows=case.unit_rows,
        )
        for i in range(case.units)
    )
    return replace(plan, units=units)


class _Unsynced(Store):
    """Writes without fsync: this part is not measured."""

    def put(self, name: str, data: bytes) -> None:
        Path(self.path(name)).write_bytes(data)


def _write(folder: str, case: _Case) -> None:
    checkpoint = _checkpoint(folder)
    store, ids = _Unsynced(checkpoint.store.url), [u.id for u in _plan(folder, case).units]
    Path(store.path(checkpoint.folder)).mkdir(parents=True)
    logged = time.monotonic()
    answers = pa.array(["Healthcare"] * case.fragment_rows)
    tokens = pa.array([7] * case.fragment_rows, pa.int64())
    for n, (units, offsets) in enumerate(_row_ids(case)):
        table = pa.table(
            {
                "__unit": units, "__offset": offsets, "answer": answers,
                "__input_tokens": tokens, "__output_tokens": tokens,
            }
        )  # fmt: skip
        put_fragment(store, checkpoint.folder, "rows", table, ids, epoch=1)
        if time.monotonic() - logged > 15:
            logged = time.monotonic()
            say(f"{n:,} fragments")


def _row_ids(case: _Case) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the units and offsets of each fragment's rows."""
    share = case.fragment_rows // case.together  # of each unit
    each = case.fragments // case.units * case.together  # fragments of a unit
    shuffled = np.random.default_rng(1).permutation
    for first in range(0, case.units, case.together):
        units = np.repeat(np.arange(first, first + case.together, dtype=np.int32), share)
        for start in range(0, each, case.window):
            offsets = np.arange(start * share, (start + case.window) * share)
            of_units = [shuffled(offsets) if case.window > 1 else offsets for _ in range(case.together)]
            for i in range(case.window):
                yield units, np.concatenate([of_unit[i * share : (i + 1) * share] for of_unit in of_units])
