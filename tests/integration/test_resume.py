"""Runs that are stopped, and runs that meet, on a real cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.exceptions import RayEngineDiedError, RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.slices import STUB, Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

#: Rows that are answered at once, and one that is not before the file `gate` is there.
DONE = 380
NAMES = [f"n{i}" for i in range(DONE)] + ["wait"]


def held(tmp_path: Path) -> dict[str, Any]:
    """Arguments of a task that answers `DONE` rows, and the last one only when the gate is there."""
    pq.write_table(pa.table({"name": NAMES}), tmp_path / "in.parquet")
    return {
        "input_path": f"{tmp_path}/in.parquet", "prompt": "{name}", **STUB, "engine__batch_size": 20,
        "engine__kwargs": {"gate": f"{tmp_path}/gate", "delivered": f"{tmp_path}/delivered"},
    }  # fmt: skip


def wait_until_held(tmp_path: Path) -> None:
    """Until all rows but the last are finished."""
    wait_for((tmp_path / "delivered").exists)
    wait_for(lambda: sum(map(int, (tmp_path / "delivered").read_text().split())) == DONE)


def log_of(submission_id: str) -> str:
    hook = RayHook("ray_default")
    info = hook.call(jobs_api.get_status(submission_id))
    return hook.call(jobs_api.read_log_tail(submission_id, info, 1000)) if info is not None else ""


@pytest.mark.long
def test_job_that_is_stopped_keeps_its_finished_rows_and_lets_the_next_in_at_once(
    ask: Ask, tmp_path: Path, submitted: list[str]
) -> None:
    arguments = held(tmp_path)
    results: list[Any] = []
    thread = in_thread(ask, results, **arguments)
    wait_until_held(tmp_path)  # the last of them are finished, and not put yet
    RayHook("ray_default").call(jobs_api.stop(submitted[0]))
    thread.join(300)
    assert isinstance(results[0], RayLLMJobError)
    assert re.search(r"was told to stop.*Finished rows are kept", str(results[0]))
    assert not list((tmp_path / "out").rglob("*.parquet"))
    assert rows_in(fragments(tmp_path / "out")) == DONE

    (tmp_path / "gate").touch()
    result = ask(**arguments)
    assert (result["counts"]["resumed"], result["counts"]["succeeded"]) == (DONE, DONE + 1)
    # The lease was released: nobody waited until it was stale.
    assert '"step":"start"' in log_of(submitted[1])
    assert '"step":"attach"' not in log_of(submitted[1])
    table = pq.read_table(Path(result["output_path"]), partitioning=None)
    assert table.column("answer").to_pylist() == NAMES


@pytest.mark.long
def test_job_that_has_spent_what_it_may_keeps_its_rows_and_a_higher_limit_continues(
    ask: Ask, tmp_path: Path
) -> None:
    arguments, gpus = held(tmp_path), tmp_path / "gpus"
    arguments["engine__kwargs"] |= {"gpus": str(gpus)}
    arguments["engine__gpu_hour_price"] = 3600  # one a second
    results: list[Any] = []
    thread = in_thread(ask, results, **arguments, limits__max_cost=1000)
    wait_until_held(tmp_path)
    gpus.write_text("1000")
    thread.join(300)
    assert isinstance(results[0], RayLLMInputError)  # without a retry
    assert "of limits.max_cost 1000, with" in str(results[0])
    assert not list((tmp_path / "out").rglob("*.parquet"))
    assert rows_in(fragments(tmp_path / "out")) == DONE

    (tmp_path / "gate").touch()
    result = ask(**arguments, limits__max_cost=1e9)
    assert (result["counts"]["resumed"], result["counts"]["succeeded"]) == (DONE, DONE + 1)
    assert result["cost"]["total"] >= 1000 + result["gpu_seconds"]


@pytest.mark.long
def test_job_in_which_nothing_moves_ends_and_keeps_its_rows(ask: Ask, tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(60)] + ["stuck"] + [f"m{i}" for i in range(60)]
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    gate = tmp_path / "gate"
    arguments = {
        "input_path": f"{tmp_path}/in.parquet", "prompt": "{name}", "limits__stall": 5, **STUB,
        "engine__batch_size": 10, "engine__kwargs": {"stalls_from": str(gate)},
    }  # fmt: skip
    results: list[Any] = []
    thread = in_thread(ask, results, **arguments)
    wait_for(lambda: rows_in(fragments(tmp_path / "out")) >= 40)
    gate.touch()
    thread.join(300)
    [error] = results
    assert isinstance(error, RayEngineDiedError)
    assert re.search(r"no row finished for 5 s \(limits\.stall\) while", str(error))
    assert re.search(r"of this job, .*\d x MapBatches\(.* RUNNING", str(error))
    assert rows_in(fragments(tmp_path / "out")) >= 40
    assert not list((tmp_path / "out").rglob("*.parquet"))


@pytest.mark.long
def test_second_run_waits_for_the_first_and_starts_nothing(
    ask: Ask, tmp_path: Path, submitted: list[str]
) -> None:
    arguments = held(tmp_path)
    results: list[list[Any]] = [[], [], []]
    first = in_thread(ask, results[0], **arguments)
    wait_until_held(tmp_path)
    others = [
        in_thread(ask, results[1], **arguments),
        in_thread(ask, results[2], **arguments, rerun__on_running="fail"),
    ]
    # Both find it at work; the one that is not to wait is then refused.
    wait_for(lambda: len(submitted) == 3)
    wait_for(lambda: all('"step":"attach"' in log_of(name) for name in submitted[1:]))
    wait_for(lambda: results[2])
    (tmp_path / "gate").touch()
    for thread in (first, *others):
        thread.join(300)
    [made], [waited], [refused] = results
    assert (made["outcome"], waited["outcome"]) == ("published", "attached")
    assert waited["counts"] == made["counts"]
    assert made["counts"]["resumed"] == 0
    assert isinstance(refused, RayLLMJobError)
    assert re.search(r"-ask-2026-01-31-[\w-]+ is at work on .*set 'attach'", str(refused))
