"""`airflow-ray-llm missing OUTPUT --dag DAG TASK` counts the slices that the page counts, and says so."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.models.backfill import Backfill
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from fastapi.testclient import TestClient
from sqlalchemy import delete
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_raydatallm.cli.main import main
from tests.support.slice_index import Run, clean_runs, write_runs, write_schedule

DAG_FILE = """
import datetime as dt
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator

with DAG("photos", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), catchup={catchup},
         start_date=dt.datetime(2026, 3, 1, tzinfo=dt.UTC), end_date=dt.datetime(2026, 3, 8, tzinfo=dt.UTC)):
    RayLLMBatchOperator(task_id="ask", model_source="m", prompt="{{a}}", input_path="/in", output_path="/out")
"""
LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"
END = dt.datetime(2026, 3, 8, tzinfo=dt.UTC)


def march(day: int) -> dt.datetime:
    return dt.datetime(2026, 3, day, tzinfo=dt.UTC)


def days(*numbers: int) -> list[str]:
    return [f"2026-03-{number:02}" for number in numbers]


class Dag:
    def __init__(self, session: Session, folder: Path, out: pytest.CaptureFixture[str]) -> None:
        self.session, self.folder, self._out = session, folder, out
        self.table = folder / "table"

    def write(self, *, catchup: bool) -> None:
        (self.folder / "dags" / "photos.py").write_text(DAG_FILE.format(catchup=catchup))

    def publish(self, *numbers: int) -> None:
        """As far as a listing shows."""
        for key in days(*numbers):
            (self.table.with_name("table.ray_llm") / f"ds={key}").mkdir(parents=True)

    def missing(self, *more: str, code: int = 0) -> tuple[list[str], str]:
        command = ["missing", f"{self.table}", "--dag", "photos", "ask", *more]
        assert main(command) == code
        captured = self._out.readouterr()
        notes = [line for line in captured.err.splitlines() if line.startswith(("note: ", "error: "))]
        return captured.out.splitlines(), "\n".join(notes)


@pytest.fixture
def dag(
    database: sessionmaker[Session],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Dag]:
    (tmp_path / "dags").mkdir()
    bundle = {"name": "dags-folder", "classpath": LOCAL, "kwargs": {"path": str(tmp_path / "dags")}}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    with database() as session:
        yield Dag(session, tmp_path, capsys)
        clean_runs(session, "photos")
        for model in (SerializedDagModel, Backfill):
            session.execute(delete(model))
        session.execute(delete(DagModel).where(DagModel.dag_id == "photos"))
        session.commit()


@pytest.mark.parametrize(("catchup", "expected"), [(False, days(3, 4, 5, 6)), (True, days(1, 2, 3, 4, 5, 6))])
def test_command_and_page_count_the_same_slices(
    dag: Dag, client_of: Callable[[str], TestClient], catchup: bool, expected: list[str]
) -> None:
    dag.write(catchup=catchup)
    options = {"start_date": march(1), "end_date": END, "catchup": catchup, "following": march(7)}
    write_schedule(dag.session, "photos", "ask", **options)
    runs = [Run(key, date=march(day), run_id=key) for day in (3, 5) for key in days(day)]
    write_runs(dag.session, "photos", "ask", runs)
    found, note = dag.missing()
    assert found == expected
    assert note.startswith(f"note: counts slices from {expected[0]} on, by ")
    page = client_of("bob").get("/ray-llm/api/dags/photos/tasks/ask/slices").json()["without_run"]
    assert {one["slice_key"] for one in page["dates"]} | set(days(3, 5)) == set(found)


def test_without_airflows_runs_it_counts_from_the_first_slice_of_the_table(dag: Dag) -> None:
    dag.write(catchup=False)
    assert "is not known" in dag.missing(code=1)[1]
    dag.publish(5, 6)
    found, note = dag.missing()
    assert found == days(5, 6, 7, 8)
    assert note.startswith("note: counts slices from 2026-03-05 on, by the first in the table")
    assert dag.missing("--from", "2026-03-07") == (days(7, 8), "")
    assert dag.missing("--to", "2026-03-05")[0] == days(5)


def test_without_airflows_runs_a_dag_that_catches_up_counts_from_its_start(dag: Dag) -> None:
    dag.write(catchup=True)
    found, note = dag.missing()
    assert found == days(1, 2, 3, 4, 5, 6, 7, 8)
    assert "start_date" in note
