"""What a task's log says of runs that people make, by real Airflow's own commands."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DAG = """
import datetime as dt

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

schedule = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
with DAG("daily", schedule=schedule, start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)):
    RayLLMBatchOperator(
        task_id="infer", input_path="/nowhere/in.csv", output_path="/nowhere/out", prompt="Who is {name}?",
        model_source="m", limits={"reconnect": 1},
    )
"""


@pytest.fixture
def airflow(tmp_path: Path, empty_database: Path) -> dict[str, str]:
    """The environment of an Airflow of its own, whose Ray cluster is away."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "daily.py").write_text(DAG)
    (tmp_path / "airflow.db").write_bytes(empty_database.read_bytes())
    return {
        **os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of-the-api-server",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(tmp_path / "logs"), "PYTHONPATH": str(ROOT),
        "AIRFLOW_CONN_RAY_DEFAULT": "ray://127.0.0.1:9", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip


def output(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_logical_date_of_dags_trigger_names_no_slice_and_the_log_says_which_it_is(
    airflow: dict[str, str], tmp_path: Path
) -> None:
    said = output(airflow, "tests.support.airflow_worker", "daily", "2026-03-02")
    entries = map(json.loads, (tmp_path / "logs" / "infer.log").read_text().splitlines())
    events = [(str(entry["event"]), entry["level"]) for entry in entries]
    [slice_line] = [i for i, (event, _) in enumerate(events) if event.startswith("Slice ")]
    key = events[slice_line][0].split()[1]
    assert key != "2026-03-02", said
    text, level = events[slice_line + 1]
    assert level == "warning"
    assert text.startswith(f"The slice is {key}, where the run's data interval begins, and not 2026-03-02")
    assert '--conf \'{"slice": "2026-03-02"}\'' in text


def test_run_of_dags_test_says_which_day_a_backfill_leaves_out_and_it_does(
    airflow: dict[str, str], tmp_path: Path
) -> None:
    said = output(airflow, "airflow", "dags", "test", "daily", "2026-03-02")
    assert "The slice is 2026-03-01" in said, said
    assert "leave out slice 2026-03-02. Delete the run" in said
    days = ("--from-date", "2026-03-01", "--to-date", "2026-03-03")
    told = output(airflow, "airflow", "backfill", "create", "--dag-id", "daily", *days)
    with sqlite3.connect(tmp_path / "airflow.db") as database:
        made = database.execute(
            "select substr(logical_date, 1, 10), exception_reason from backfill_dag_run order by 1"
        ).fetchall()
    assert made == [("2026-03-01", None), ("2026-03-02", "already exists"), ("2026-03-03", None)], told
