"""Golden rows on Ray: the engine that answered the slice answers them, whatever reads for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.paths import ROOT
from tests.support.slices import STUB, Ask


def golden_rows(folder: Path, rows: list[dict[str, Any]]) -> dict[str, str]:
    path = folder / "golden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path)}


@pytest.mark.parametrize("blocks", [None, pytest.param(3, marks=pytest.mark.long)])
def test_one_engine_answers_the_slice_and_then_the_golden_rows(
    ask: Ask, tiny_model: Path, tmp_path: Path, blocks: int | None
) -> None:
    """In the slice's process, and by Ray Data and a feeder."""
    rows = pa.table({"name": [f"n{n}" for n in range(20)], "tokens": [10] * 20})
    pq.write_table(rows, tmp_path / "in.parquet")
    known = [{"name": f"g{n}", "tokens": 20, "answer": "aab"[n % 3]} for n in range(9)]
    arguments: dict[str, Any] = {
        "input_path": f"{tmp_path}/in.parquet", "model_source": str(tiny_model), "poll_interval": 1.0,
        "code_paths": [str(ROOT / "tests" / "support" / "stub_worker.py")],
        "engine": {"kind": "stub_worker:CountingWorkers", "blocks": blocks},
        "sampling_params": {"max_tokens": "{tokens}"},
    }  # fmt: skip
    result = ask(**arguments, quality__golden=golden_rows(tmp_path, known))
    assert (result["counts"]["planned"], result["counts"]["succeeded"]) == (20, 20)
    assert result["tokens"]["output"] == 200
    golden = result["golden"]
    assert (golden["rows"], golden["correct"], golden["tokens"]["output"]) == (9, 6, 180)
    assert (tmp_path / "out.asked").read_text().split() == ["10"] * 20 + ["20"] * 9
    assert len((tmp_path / "out.workers").read_text().split()) == 1
    assert pq.read_table(result["output_path"], partitioning=None).column("name").to_pylist() == [
        f"n{n}" for n in range(20)
    ]


@pytest.mark.long
def test_golden_rows_of_an_engine_that_ray_data_runs_are_repaired_too(ask: Ask, tmp_path: Path) -> None:
    """The stub answers with the last message: first with the row, then with what it is told."""
    told = "Your answer does not match regex.\nCorrect it, and write nothing but the corrected answer."
    names = ["row", "Your own"] * 50
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet", row_group_size=30)
    known = [{"name": "known", "answer": told}, {"name": "Your known", "answer": told}]
    result = ask(
        **STUB, input_path=f"{tmp_path}/in.parquet", prompt="{name}", regex=r"Your [^\n]*(\n.*)?",
        quality={"repair": 1, "golden": golden_rows(tmp_path, known)},
    )  # fmt: skip
    assert (result["counts"]["succeeded"], result["tokens"]["output"]) == (100, 3 * 150)
    golden = result["golden"]
    assert (golden["rows"], golden["correct"], golden["tokens"]) == (2, 1, {"input": 21, "output": 9})
