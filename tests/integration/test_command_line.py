"""The commands as Airflow's own, on its real database."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.processor.commands.spec_file import load_spec
from tests.support.in_process import STUB, changed, run_in_process
from tests.support.paths import ROOT
from tests.support.slices import PROGRAM

BROKEN = """
from airflow.sdk import dag
print("printed by a DAG file")
raise ValueError("broken on purpose")
"""
MAPPED = """
import pendulum
from airflow.sdk import DAG
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

with DAG("mapped", schedule="@daily", start_date=pendulum.datetime(2026, 1, 1)):
    RayLLMBatchOperator.partial(
        task_id="ask", input_path="/in", output_path="/out", model_source="m", prompt="{a}"
    ).expand(slice_key=["a", "b"])
"""
UNDEFINED = """
import pendulum
from airflow.sdk import DAG
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

with DAG("undefined", schedule="@daily", start_date=pendulum.datetime(2026, 1, 1)):
    RayLLMBatchOperator(
        task_id="ask", input_path="/in", output_path="/out", model_source="m",
        prompt="{{ params.nowhere.at_all }}",
    )
"""


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
    (dags := tmp_path / "dags").mkdir()
    shutil.copy(ROOT / "dags" / "customers_daily.py", dags)
    (dags / "broken.py").write_text(BROKEN)
    (dags / "undefined.py").write_text(UNDEFINED)
    (dags / "mapped.py").write_text(MAPPED)
    shutil.copy(empty_database, tmp_path / "airflow.db")
    environment = {
        **os.environ, **{f"RAY_LLM_DEMO_{name}": value for name, value in demo.items()},
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
    }  # fmt: skip

    def airflow(*arguments: str, code: int = 0) -> str:
        command = [PROGRAM.with_name("airflow"), "ray-llm", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr[-2000:]
        assert not code or not done.stdout
        return done.stderr if code else done.stdout

    (tmp_path / "in" / "ds=2026-01-01").mkdir(parents=True)
    pq.write_table(
        pa.table({"Company": ["Acme", "Bolt"]}), tmp_path / "in" / "ds=2026-01-01" / "rows.parquet"
    )
    (tmp_path / "spec.json").write_text(airflow("spec", "customers_daily", "infer_industry", "2026-01-01"))
    job = load_spec(f"{tmp_path}/spec.json")
    assert (job.slice_key, job.output_column) == ("2026-01-01", "industry")
    run_in_process(changed(job, engine=STUB, choices=None))
    [state] = json.loads(airflow("slices", f"{tmp_path}/out", "--json"))
    assert (state["key"], state["report"]["counts"]["succeeded"]) == ("2026-01-01", 2)

    def rows_of_database() -> list[str]:
        with contextlib.closing(sqlite3.connect(tmp_path / "airflow.db")) as database:
            return list(database.iterdump())

    before = rows_of_database()
    by_schedule = ("--dag", "customers_daily", "infer_industry", "--to", "2026-01-03")
    command = [PROGRAM.with_name("airflow"), "ray-llm", "missing", f"{tmp_path}/out", *by_schedule]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2026-01-02\n2026-01-03\n"
    assert "broken on purpose" not in done.stderr
    airflow("spec", "customers_daily", "infer_industry", "2026-01-02")
    mapped = ("spec", "mapped", "ask", "2026-01-02", "--map-index")
    assert json.loads(airflow(*mapped, "1"))["slice_key"] == "b"
    assert "give --map-index below 2" in airflow(*mapped, "2", code=1)
    assert rows_of_database() == before

    # Of a DAG that is not found, stdout has nothing, and stderr what is wrong.
    said = airflow("spec", "broken", "ask", "2026-01-01", code=1)
    assert (
        "\nerror: there is no DAG 'broken' in the bundles dags-folder, and 1 file(s) cannot be imported: "
        "broken.py\n"
    ) in said
    assert said.splitlines()[-1].endswith("ValueError: broken on purpose")
    said = airflow("spec", "undefined", "ask", "2026-01-01", code=1)
    assert said.splitlines()[-1].startswith("error: ")
    assert "nowhere" in said.splitlines()[-1]
