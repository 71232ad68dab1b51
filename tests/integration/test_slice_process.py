"""A small slice runs in one process, which may die."""

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


@pytest.mark.long
def test_process_that_is_killed_starts_again_with_the_missing_rows(
    ask: Ask, ray_head: LocalHead, tiny_model: Path, tmp_path: Path
) -> None:
    tokens = list(range(40, 140))  # a name for each row, and its milliseconds
    rows = pa.table({"name": [f"n{n % 80}" for n in tokens], "tokens": tokens})
    pq.write_table(rows, tmp_path / "in.parquet")
    results: list[Any] = []
    thread = in_thread(
        ask, results, input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model),
        code_paths=[str(ROOT / "tests" / "support" / "stub_worker.py")], engine="stub_worker:CountingWorkers",
        sampling_params={"max_tokens": "{tokens}"}, poll_interval=1.0,
    )  # fmt: skip
    wait_for(lambda: fragments(tmp_path / "out"))
    # Rows finish in the order in which they were asked.
    rows_kept = rows_in(fragments(tmp_path / "out"))
    finished = set((tmp_path / "out.asked").read_text().split()[:rows_kept])
    [process] = processes(ray_head, "ray::SliceProcess")
    assert not processes(ray_head, "ray::WriterActor") + processes(ray_head, "ray::FeederProcess")
    process.kill()
    thread.join(120)
    [result] = results
    assert (result["counts"]["succeeded"], result["counts"]["quarantined"]) == (100, 0)
    assert pq.read_table(result["output_path"], partitioning=None).column("tokens").to_pylist() == tokens
    asked = (tmp_path / "out.asked").read_text().split()
    assert finished
    assert {n for n in asked if asked.count(n) > 1}.isdisjoint(finished)


@pytest.mark.long
def test_process_that_dies_again_and_again_ends_the_run(ask: Ask, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os\ndef ask(row):\n    os._exit(3)\n")
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    with pytest.raises(RayLLMJobError, match="the slice's process died 4 times without a finished row"):
        ask(
            input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model), preprocess="deadly:ask",
            code_paths=[str(tmp_path / "deadly.py"), str(ROOT / "tests" / "support" / "stub_worker.py")],
            engine="stub_worker:CountingWorkers", prompt=None,
        )  # fmt: skip
