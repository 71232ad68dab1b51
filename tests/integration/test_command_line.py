"""The commands as Airflow's own, on its real database."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.processor.__main__ import load_spec
from tests.support.in_process import STUB, run_in_process
from tests.support.slices import PROGRAM


def test_date_of_a_spec_that_is_none_is_named(empty_database: Path) -> None:
    command = [
        PROGRAM.with_name("airflow"),
        "ray-llm",
        "spec",
        "customers_daily",
        "infer_industry",
        "2026-13-01",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: '2026-13-01' is neither a date nor the id of a run of DAG 'customers_daily'" in done.stderr


def test_spec_of_a_dags_task_answers_its_slice(empty_database: Path, tmp_path: Path) -> None:
    demo = {"INPUT": f"{tmp_path}/in", "OUTPUT": f"{tmp_path}/out", "MODEL": "stub/stub"}
    environment = {**os.environ, **{f"RAY_LLM_DEMO_{name}": value for name, value in demo.items()}}

    def airflow(*arguments: str) -> str:
        command = [PROGRAM.with_name("airflow"), "ray-llm", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    (tmp_path / "in" / "ds=2026-01-01").mkdir(parents=True)
    pq.write_table(
        pa.table({"Company": ["Acme", "Bolt"]}), tmp_path / "in" / "ds=2026-01-01" / "rows.parquet"
    )
    (tmp_path / "spec.json").write_text(airflow("spec", "customers_daily", "infer_industry", "2026-01-01"))
    job = load_spec(f"{tmp_path}/spec.json")
    assert (job.slice_key, job.output_column) == ("2026-01-01", "industry")
    run_in_process(job.model_copy(update={"engine": STUB, "choices": None}))
    [state] = json.loads(airflow("slices", f"{tmp_path}/out", "--json"))
    assert (state["key"], state["report"]["counts"]["succeeded"]) == ("2026-01-01", 2)
