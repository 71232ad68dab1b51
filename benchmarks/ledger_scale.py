"""Listing and reading the ledger of a slice with 100,000 fragments, and subtracting it from the plan.

Goal: under 60 s, whether the fragments' names give their rows (each holds one range of one unit) or their
first bytes do (`mixed`: each holds rows of four units). They are real files on the local disk, in the page
cache, as after a run that died just before.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.plan import Plan, make_plan
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState
from airflow_provider_raydatallm.processor.store.fragments import put_fragment
from benchmarks.fresh import fresh
from benchmarks.table import Figure, say, show

FRAGMENTS = int(os.environ.get("BENCH_FRAGMENTS", 100_000))
ROWS = 100  # of each fragment
UNITS = 1_000
GOAL_SECONDS = 60

#: Units whose rows share a fragment.
_TOGETHER = {"contiguous": 1, "mixed": 4}


def run() -> bool:
    figures = []
    for kind in _TOGETHER:
        with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
            say(f"writing {FRAGMENTS:,} {kind} fragments")
            _write(folder, kind)
            run, rows = fresh(subtract, folder), _plan(folder).rows
        result = run.result
        assert result["fragments"] == FRAGMENTS, result
        assert result["missing"] == rows - FRAGMENTS * ROWS, result
        seconds = result["seconds"]
        figures += [
            Figure(
                f"{FRAGMENTS:,} {kind} fragments, listed and subtracted", f"{seconds:.1f} s",
                f"< {GOAL_SECONDS} s", seconds < GOAL_SECONDS,
            ),
            Figure("... of it listed and read", f"{result['listed']:.1f} s"),
            Figure("... memory", f"{run.peak_mb:.0f} MB"),
        ]  # fmt: skip
    return show(figures)


def subtract(folder: str) -> dict[str, Any]:
    plan, checkpoint = _plan(folder), _checkpoint(folder)
    began = time.monotonic()
    progress = CheckpointState(plan, checkpoint.fragments(), max_attempts=1)
    listed = time.monotonic() - began
    missing, quarantined = progress.rows_missing, progress.rows_quarantined
    seconds = time.monotonic() - began
    assert not quarantined
    return {
        "seconds": seconds, "listed": listed, "fragments": len(progress.fragments), "missing": missing
    }  # fmt: skip


def _checkpoint(folder: str) -> Checkpoint:
    return Checkpoint(Store(f"{folder}/out.ray_llm/ds=2026-01-31"), "0" * 16)


def _plan(folder: str) -> Plan:
    """Returns a small file's plan with enlarged row counts: 1% more rows than the fragments hold."""
    each = FRAGMENTS * ROWS // UNITS + ROWS
    path = Path(folder, "in.parquet")
    if not path.exists():
        pq.write_table(pa.table({"name": ["customer"]}), path)
    plan = make_plan(
        SliceJob(
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
            range=replace(unit.range, rows=each),
            rows=each,
        )
        for i in range(UNITS)
    )
    return replace(plan, units=units)


class _Unsynced(Store):
    """Writes without fsync: this part is not measured."""

    def put(self, name: str, data: bytes) -> None:
        Path(self.path(name)).write_bytes(data)


def _write(folder: str, kind: str) -> None:
    checkpoint = _checkpoint(folder)
    store, ids = _Unsynced(checkpoint.store.url), [u.id for u in _plan(folder).units]
    Path(store.path(checkpoint.folder)).mkdir(parents=True)
    logged = time.monotonic()
    answers = pa.array(["Healthcare"] * ROWS)
    tokens = pa.array([7] * ROWS, pa.int64())
    for n, (units, offsets) in enumerate(_row_ids(_TOGETHER[kind])):
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


def _row_ids(together: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the units and offsets of each fragment's rows, with `together` units per fragment."""
    share = ROWS // together
    each = FRAGMENTS // UNITS * together  # fragments per unit
    for first in range(0, UNITS, together):
        units = np.repeat(np.arange(first, first + together, dtype=np.int32), share)
        for i in range(each):
            yield units, np.tile(np.arange(i * share, (i + 1) * share), together)
