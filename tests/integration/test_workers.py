"""A slice goes on with the workers that it has, and a row that kills its engine takes no other with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.paths import ROOT
from tests.support.slices import Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

#: Of `stub_worker`: tokens of a row that kills its engine.
DEADLY = 666
#: Of a row that waits until a file is there.
LONG = 999


@pytest.fixture
def asked(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """60 rows, which a stub worker answers in 3 s."""
    write(tmp_path, [50] * 60)
    return {
        "input_path": f"{tmp_path}/in.parquet", "model_source": str(tiny_model),
        "code_paths": [str(ROOT / "tests" / "support" / "stub_worker.py")],
        "sampling_params": {"max_tokens": "{tokens}"}, "poll_interval": 1.0,
    }  # fmt: skip


def write(folder: Path, tokens: list[int]) -> None:
    """Deadly rows are identical."""
    names = ["deadly" if count == DEADLY else f"n{i}" for i, count in enumerate(tokens)]
    rows = pa.table({"name": names, "tokens": tokens})
    pq.write_table(rows, folder / "in.parquet")


def test_row_that_kills_its_engine_is_quarantined_and_all_others_are_published(
    ask: Ask, asked: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, [20] * 41 + [DEADLY] + [20] * 30 + [DEADLY] + [20] * 27)
    result = ask(
        **asked, engine="stub_worker:MortalWorkers", quality__max_quarantine=0.1, engine__deduplicate=True
    )
    counts = result["counts"]
    assert (counts["succeeded"], counts["quarantined"], counts["asked_again"]) == (98, 2, 0)
    quarantined = pq.read_table(tmp_path / "out.quarantine", partitioning=None).to_pylist()
    assert [row["__error_type"] for row in quarantined] == ["EngineKilledByRow"] * 2
    assert {row["name"] for row in quarantined} == {"deadly"}
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.column("name").to_pylist() == [f"n{i}" for i in range(100) if i not in (41, 72)]
    starts = len((tmp_path / "out.workers").read_text().split())
    assert starts <= 7  # two engines; two deaths among all rows, one among few, one alone (and one to spare)


def test_slice_goes_on_when_one_of_two_workers_cannot_start(
    ask: Ask, asked: dict[str, Any], tmp_path: Path
) -> None:
    result = ask(**asked, engine="stub_worker:PickyWorkers", engine__workers=2)
    assert result["counts"]["succeeded"] == 60
    assert result["balance"]["workers"] == 1
    assert len((tmp_path / "out.workers").read_text().split()) >= 2


@pytest.mark.long
def test_rows_of_a_paused_worker_are_answered_by_the_other(
    ask: Ask, asked: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, [100] * 300)
    results: list[Any] = []
    thread = in_thread(ask, results, **asked, engine="stub_worker:WatchedWorkers", engine__workers=2)
    wait_for(lambda: rows_in(fragments(tmp_path / "out")) > 10)
    paused, _ = wait_for(lambda: len(pids := (tmp_path / "out.workers").read_text().split()) == 2 and pids)
    os.kill(int(paused), signal.SIGSTOP)
    thread.join(240)
    [result] = results
    assert result["counts"]["succeeded"] == 300
    assert result["counts"]["asked_again"] > 0
    wait_for(lambda: not os.path.exists(f"/proc/{paused}"))


def test_worker_ends_when_the_last_rows_are_in_the_other(
    ask: Ask, asked: dict[str, Any], tmp_path: Path
) -> None:
    """Its GPU is free then, also where the last answer takes long."""
    write(tmp_path, [20] * 40 + [LONG])
    results: list[Any] = []
    thread = in_thread(ask, results, **asked, engine="stub_worker:HoldingWorkers", engine__workers=2)
    started = tmp_path / "out.workers"
    pids = wait_for(lambda: started.exists() and len(pids := started.read_text().split()) == 2 and pids)
    wait_for(lambda: sum(os.path.exists(f"/proc/{pid}") for pid in pids) == 1)
    assert not results
    (tmp_path / "out.gate").touch()
    thread.join(240)
    [result] = results
    assert result["counts"]["succeeded"] == 41
    assert len(started.read_text().split()) == 2
