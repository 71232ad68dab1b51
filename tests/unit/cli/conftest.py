from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.in_process import job_of


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": [*"aaab", "fail"]}), tmp_path / "in.parquet")
    return job_of(
        slice_key="2026-01-01", input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
        rerun__on_config_change="recompute", quality__max_quarantine=0.5,
    )  # fmt: skip
