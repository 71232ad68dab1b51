"""What the log of a failed try ends with, as an Airflow worker writes it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.result.failure import Failure
from tests.support.paths import ROOT

DAG = """
from airflow.sdk import DAG

from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator


def tell(context):
    context["ti"].task.log.info("the user's own callback")


args = {
    "input_path": "/nowhere/in.csv", "output_path": "/nowhere/out", "prompt": "Who is {name}?",
    "model_source": "m",
}
with DAG("fails", schedule=None, default_args=args):
    RayLLMBatchOperator(task_id="final", on_failure_callback=tell)
    RayLLMBatchOperator(
        task_id="retried", slice_key="k", ray_conn_id="gone", limits={"reconnect": 1}, retries=1,
        on_retry_callback=[tell], output_path="{{ var.value.lake }}/out",
    )
    RayLLMBatchOperator.partial(
        task_id="mapped", ray_conn_id="gone", limits={"reconnect": 1}, on_failure_callback=[tell]
    ).expand(slice_key=["k"])
"""
GONE = "there is no connection 'gone'"
SAYS = {"final": "no slice key", "retried": GONE, "mapped": GONE}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def logs(
    tmp_path_factory: pytest.TempPathFactory, empty_database: Path, lake: Path
) -> dict[str, list[dict[str, Any]]]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags" / "fails.py").write_text(DAG)
    shutil.copy(empty_database, home / "airflow.db")
    environment = {
        **os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of-the-api-server",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"), "PYTHONPATH": str(ROOT),
        "AIRFLOW_VAR_LAKE": str(lake),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.airflow_worker", "fails"], cwd=ROOT, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    return {
        name: [json.loads(line) for line in (home / "logs" / f"{name}.log").read_text().splitlines()]
        for name in SAYS
    }


@pytest.mark.parametrize("name", SAYS)
def test_sentence_and_advice_end_the_log_stand_once_and_in_no_fold(
    logs: dict[str, list[dict[str, Any]]], name: str
) -> None:
    events = [str(entry["event"]) for entry in logs[name]]
    fails = events.index("Task failed with exception")
    # What to do, and where it was, follow on lines of their own.
    last = max(i for i, event in enumerate(events) if SAYS[name] in event)
    after = [entry for entry in logs[name][last:] if entry["event"] != "::endgroup::"]
    assert {entry["level"] for entry in after} == {"error"}
    assert events.count(events[last]) == 1
    assert last > events.index("the user's own callback") > fails
    depth = 0
    for event in events[:last]:
        depth = max(depth + event.startswith("::group::") - event.startswith("::endgroup::"), 0)
    assert depth == 0
    assert logs[name][last]["level"] == "error"
    # Where no callback runs, what Airflow says of the exception has all of it.
    assert SAYS[name] in json.dumps(logs[name][fails]["error_detail"])


def test_table_that_the_worker_reaches_says_why_there_was_no_job(
    logs: dict[str, list[dict[str, Any]]], lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", f"{lake}/out", "k", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["run"], shown["progress"]["task"]) == ("failed", {"dag_id": "fails", "task_id": "retried"})
    failure = Failure.parse(shown["failure"])
    assert failure.kind == "no_connection"
    assert GONE in failure.sentence
    assert not Path("/nowhere").exists(), "a disk that only the cluster has"
