"""Golden and repeated rows on Ray, which the engine of the slice answers, whatever reads for it; and a real
model that judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import real_models
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


@pytest.mark.parametrize("blocks", [None, pytest.param(3, marks=pytest.mark.long)])
def test_identical_rows_answer_no_repeated_row(
    ask: Ask, tiny_model: Path, tmp_path: Path, blocks: int | None
) -> None:
    pq.write_table(pa.table({"name": ["same"] * 30}), tmp_path / "in.parquet")
    result = ask(
        input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model), poll_interval=1.0,
        code_paths=[str(ROOT / "tests" / "support" / "stub_worker.py")],
        engine={"kind": "stub_worker:CountingWorkers", "blocks": blocks},
        sampling_params={"max_tokens": 10, "temperature": 0}, quality={"repeat": 4},
    )  # fmt: skip
    assert (result["counts"]["succeeded"], result["counts"]["deduplicated"]) == (30, 29)
    assert (result["repeat"]["rows"], result["repeat"]["differing"]) == (4, 0)
    assert result["repeat"]["tokens"]["output"] == 40
    assert len((tmp_path / "out.asked").read_text().split()) == 1 + 4


@pytest.mark.long
def test_cached_answers_are_asked_again_and_judged_by_another_engine(ask: Ask, tmp_path: Path) -> None:
    names = [f"{word} {n}" for n in range(10) for word in ("red", "blue", "green", "old")]
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    kwargs = {"max_model_len": 512}
    arguments: dict[str, Any] = {
        "input_path": f"{tmp_path}/in.parquet", "model_source": str(real_models.smollm2()),
        "engine": {"kind": "vllm", "scope": "slice", "kwargs": kwargs, "cache": str(tmp_path / "cache")},
        "prompt": "Write a short sentence about {name}.",
        "sampling_params": {"max_tokens": 24, "temperature": 0},
    }  # fmt: skip
    ask(**arguments)
    judge = {
        "model": str(real_models.smollm2()), "kwargs": {"max_model_len": 1024, "max_num_seqs": 8}, "rows": 30,
        "prompt": "Is this sentence about {name}? {answer}",
    }  # fmt: skip
    gate = {"of": "judge", "then": "warn", "min": 0}
    quality = {"repeat": 0.5, "judge": judge, "gates": [gate]}
    result = ask(**arguments, slice_key="2026-02-01", quality=quality)
    assert (result["counts"]["succeeded"], result["counts"]["cached"]) == (40, 40)
    repeat, told = result["repeat"], result["judge"]
    assert (repeat["rows"], repeat["tokens"]["output"] > 20 * 5) == (20, True)
    assert repeat["share"] <= 0.2  # greedy, but computed beside other rows
    assert (told["rows"], told["failed"], told["model"]) == (30, 0, judge["model"])
    assert 0 <= told["low"] <= told["share"] <= told["high"] <= 1
    assert told["tokens"]["input"] > 30 * 24
    [verdict] = result["gates"]
    assert (verdict["verdict"], verdict["value"]) == ("passed", told["share"])
