"""Workers of a user's own engine that die before they are ready, again and again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.exceptions import RayEngineDiedError
from tests.support.paths import ROOT
from tests.support.slices import Ask

SUPPORT = ROOT / "tests" / "support"


@pytest.mark.parametrize(
    ("engine", "stage"),
    [("DyingEngine", "MapWorker(MapBatches(_Worker))"), ("DyingTasksEngine", "MapBatches(_answer)")],
)
def test_run_ends_after_a_few_deaths_of_workers_that_never_start(
    ask: Ask, tmp_path: Path, engine: str, stage: str
) -> None:
    pq.write_table(pa.table({"name": ["Ada"] * 10}), tmp_path / "in.parquet")
    starts = tmp_path / "starts"
    with pytest.raises(RayEngineDiedError) as raised:
        ask(
            model_source="stub/stub", poll_interval=1.0, input_path=f"{tmp_path}/in.parquet",
            code_paths=[str(SUPPORT / "stub_engine.py"), str(SUPPORT / "dying_engine.py")],
            engine={"kind": f"dying_engine:{engine}", "kwargs": {"starts": str(starts)}},
            limits={"stall": 300},
        )  # fmt: skip
    failure = raised.value.failure
    assert stage in failure.sentence
    assert failure.cause
    assert failure.log[-1] == "libmissing.so: cannot open shared object file"
    assert len(starts.read_text().split()) < 50
