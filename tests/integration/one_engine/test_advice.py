"""Advice that real runs give: what they suffer from is told, and a healthy one is left alone. What only GPUs
show is measured in `benchmarks/gpu`; cut answers of a schema, in `test_vllm.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.paths import ROOT
from tests.support.slices import WARM_ENGINE, Ask

#: Milliseconds of rows for two workers that take one row after the other, 32 of them in a batch. The rules
#: look at runs of half a minute.
EVEN = [165] * 384
SKEWED = [1000] * 32 + [10] * 352
FEW = [1] * 64


@pytest.mark.long
@pytest.mark.parametrize(
    ("milliseconds", "advice"),
    [
        pytest.param(SKEWED, ["workers_unbalanced"], id="skewed"),
        # These need workers that start together, which a busy machine does not give.
        pytest.param(EVEN, [], id="even"),
        pytest.param(FEW, ["start_longer_than_work"], id="few"),
    ],
)
def test_two_workers_are_advised_by_how_their_work_was_spread(
    ask: Ask, tiny_model: Path, tmp_path: Path, milliseconds: list[int], advice: list[str]
) -> None:
    rows = {"name": [f"n{i}" for i in range(len(milliseconds))], "ms": milliseconds}
    pq.write_table(pa.table(rows), tmp_path / "in.parquet")
    result: dict[str, Any] = ask(
        input_path=f"{tmp_path}/in.parquet", engine="stub_worker:StubWorkers", engine__workers=2,
        code_paths=[str(ROOT / "tests" / "support" / "stub_worker.py")], model_source=str(tiny_model),
        sampling_params={"max_tokens": "{ms}"}, poll_interval=1.0, engine__batch_size=32,
    )  # fmt: skip
    assert result["advice"] == advice, result
    assert result["balance"]["workers"] == 2


@pytest.mark.long
def test_rows_that_do_not_fit_are_told_by_the_real_engine(ask: Ask, tiny_model: Path, tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(30)] + ["a name that is far too long " * 40] * 10
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    result: dict[str, Any] = ask(
        input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model), poll_interval=1.0,
        sampling_params={"max_tokens": 2, "ignore_eos": True}, engine__kwargs=WARM_ENGINE,
        quality__max_quarantine=0.5,
    )  # fmt: skip
    assert result["advice"] == ["answers_cut", "prompts_too_long"]
    report = json.loads(Path(result["report_path"]).read_text())
    cut, long = (advice["evidence"] for advice in report["advice"])
    assert cut.startswith("30 of 40 answers (75.0%)")
    assert long.startswith("10 of 40 prompts (25.0%)")
