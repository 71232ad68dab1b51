"""Runs that are stopped, and runs that meet, on a real cluster."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.exceptions import RayEngineDiedError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.integration.conftest import STUB, Ask, wait_for

N = 400
#: 20 batches of half a second.
SLOW = {**STUB, "batch_size": 20, "engine_kwargs": {"pause": 0.5}}


def fragments(folder: Path) -> list[Path]:
    return list(folder.rglob("_checkpoint/v*/rows-*.arrow"))


def rows_in(found: list[Path]) -> int:
    return sum(int(f.name.split("-")[-3]) for f in found)


def in_thread(ask: Ask, results: list[Any], **arguments: Any) -> threading.Thread:
    def run() -> None:
        try:
            results.append(ask(**arguments))
        except Exception as e:
            results.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_job_that_is_stopped_keeps_its_finished_rows_and_lets_the_next_in_at_once(
    ask: Ask, tmp_path: Path, submitted: list[str]
) -> None:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(N)]}), tmp_path / "in.parquet")
    arguments = {"input_path": f"{tmp_path}/in.parquet", **SLOW}
    results: list[Any] = []
    thread = in_thread(ask, results, **arguments)
    wait_for(lambda: fragments(tmp_path / "out"))
    time.sleep(1.2)  # two batches more are finished, and not put yet
    put_before = rows_in(fragments(tmp_path / "out"))
    stopped_at = time.monotonic()
    RayHook("ray_default").call(jobs_api.stop(submitted[0]))
    thread.join(60)
    assert isinstance(results[0], RayLLMJobError)
    assert "was told to stop; its finished rows are kept" in str(results[0])
    assert time.monotonic() - stopped_at < 25
    assert not list((tmp_path / "out").rglob("*.parquet"))

    began = time.monotonic()
    result = ask(**arguments)
    counts = result["counts"]
    assert put_before + 20 <= counts["resumed"] < N  # what the last flush put
    assert counts["succeeded"] == N
    # The lease was released: nobody waited until it was stale.
    assert time.monotonic() - began < 10 + (N - counts["resumed"]) / 20 * 0.5 + 15
    table = pq.read_table(Path(result["output_path"]), partitioning=None)
    assert table.column("answer").to_pylist() == [f"Who is n{i}?" for i in range(N)]


def test_job_in_which_nothing_moves_ends_and_keeps_its_rows(ask: Ask, tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(60)] + ["stuck"] + [f"m{i}" for i in range(60)]
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    with pytest.raises(RayEngineDiedError, match=r"no row finished for 5 s \(stall_timeout\) while") as e:
        ask(
            input_path=f"{tmp_path}/in.parquet", prompt="{name}", stall_timeout=5,
            **{**STUB, "batch_size": 10, "engine_kwargs": {"pause": 0.5}},
        )  # fmt: skip
    assert re.search(r"Of this job, .*\d x MapBatches\(.* RUNNING", str(e.value))
    assert rows_in(fragments(tmp_path / "out")) >= 40
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_second_run_waits_for_the_first_and_starts_nothing(ask: Ask, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(N)]}), tmp_path / "in.parquet")
    arguments = {"input_path": f"{tmp_path}/in.parquet", **SLOW, "engine_kwargs": {"pause": 1.0}}
    results: list[list[Any]] = [[], [], []]
    first = in_thread(ask, results[0], **arguments)
    wait_for(lambda: fragments(tmp_path / "out"))
    others = [
        in_thread(ask, results[1], **arguments),
        in_thread(ask, results[2], **arguments, on_running="fail"),
    ]
    for thread in (first, *others):
        thread.join(120)
    [made], [waited], [refused] = results
    assert (made["outcome"], waited["outcome"]) == ("published", "attached")
    assert waited["counts"] == made["counts"]
    assert made["counts"]["resumed"] == 0
    assert isinstance(refused, RayLLMJobError)
    assert re.search(r"-ask-2026-01-31-[\w-]+ is at work on .*on_running='attach'", str(refused))
