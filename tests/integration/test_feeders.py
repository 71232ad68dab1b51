"""Rows that take long hold no others up, whatever blocks they are of, and what a feeder held when it died is
answered in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import RayLLMJobError
from tests.support.engine_processes import processes
from tests.support.paths import ROOT
from tests.support.slices import Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

#: Of `stub_worker`: tokens of rows that take until they may end.
LONG = 999
ROWS, BLOCKS = 800, 80


@pytest.fixture
def asked(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Blocks of ten rows of which one takes long; each request comes twice."""
    tokens = [LONG if row % 10 == 3 else 20 for row in range(ROWS)]
    names = [f"n{row // 20 * 20 + row % 10}" for row in range(ROWS)]
    pq.write_table(pa.table({"name": names, "tokens": tokens}), tmp_path / "in.parquet")
    return {
        "input_path": f"{tmp_path}/in.parquet", "model_source": str(tiny_model),
        "code_paths": [str(ROOT / "tests" / "support" / "stub_worker.py")],
        "engine": "stub_worker:HoldingWorkers", "engine__blocks": BLOCKS,
        "sampling_params": {"max_tokens": "{tokens}"}, "poll_interval": 1.0,
    }  # fmt: skip


def count(folder: Path, what: str) -> int:
    path = folder / f"out.{what}"
    return len(path.read_text().split()) if path.exists() else 0


def check(result: dict[str, Any], folder: Path) -> None:
    counts = result["counts"]
    assert (counts["succeeded"], counts["quarantined"]) == (ROWS, 0)
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.drop_columns(
        [name for name in published.schema.names if name not in ("name", "tokens")]
    ) == pq.read_table(folder / "in.parquet")
    assert count(folder, "workers") == 1


@pytest.mark.parametrize("deduplicate", [False, True])
def test_all_rows_are_admitted_while_some_of_every_block_take_long(
    ask: Ask, asked: dict[str, Any], tmp_path: Path, deduplicate: bool
) -> None:
    results: list[Any] = []
    thread = in_thread(ask, results, **asked, engine__deduplicate=deduplicate)
    inferred = ROWS // 2 if deduplicate else ROWS
    try:
        wait_for(lambda: count(tmp_path, "admitted") == inferred)
        wait_for(lambda: rows_in(fragments(tmp_path / "out")) == ROWS * 9 // 10)
    finally:
        (tmp_path / "out.gate").touch()  # else the job stays, and with it its engine
    thread.join(240)
    [result] = results
    check(result, tmp_path)
    assert (count(tmp_path, "admitted"), count(tmp_path, "answered")) == (inferred, inferred)


@pytest.mark.parametrize("deduplicate", [False, True])
def test_rows_that_a_feeder_held_when_it_died_are_answered_in_the_same_run(
    ask: Ask, asked: dict[str, Any], ray_head: LocalHead, tmp_path: Path, deduplicate: bool
) -> None:
    results: list[Any] = []
    thread = in_thread(ask, results, **asked, engine__deduplicate=deduplicate)
    try:
        wait_for(lambda: rows_in(fragments(tmp_path / "out")) == ROWS * 9 // 10)
        feeder, *_ = processes(ray_head, "ray::FeederProcess")
        feeder.kill()
        feeder.wait(60)
    finally:
        (tmp_path / "out.gate").touch()
    thread.join(240)
    [result] = results
    check(result, tmp_path)
    answered = (tmp_path / "out.answered").read_text().split()
    assert answered.count("20") == ROWS * 9 // 10 // (2 if deduplicate else 1)  # none of them again


@pytest.mark.long
def test_feeders_that_die_again_and_again_end_the_run(
    ask: Ask, asked: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text("import os\ndef check(row):\n    os._exit(3)\n")
    (tmp_path / "out.gate").touch()
    asked["code_paths"].append(f"{tmp_path}/deadly.py")
    with pytest.raises(RayLLMJobError, match="feeders died in 4 rounds without a finished row") as error:
        ask(**asked, postprocess="deadly:check")
    assert count(tmp_path, "workers") == 1
    assert error.value.kind == "transient"
