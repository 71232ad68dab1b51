"""All tasks at a glance: no green run hides an older slice that failed, or one that is missing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_raydatallm.contract.result.failure import Failure
from tests.support.slice_index import BEGIN, Run, clean_runs, figures, keep_runs, write_runs, write_schedule
from tests.unit.page.conftest import DAGS

ClientOf = Callable[[str | None], TestClient]
DAY = dt.timedelta(days=1)
WHY = Failure("input", "the input has no column 'mail'", row_texts=("'secret'",))
#: DAGs of one task, and how many days the schedule of each has made.
TASKS = {
    "good": 2, "early": 3, "green": 4, "manual": 2, "gaps": 5, "running": 5, "many": 90, "cleaned": 2,
    "trials": 0,
}  # fmt: skip


def key(day: int) -> str:
    return (BEGIN + day * DAY).date().isoformat()


def daily(day: int, state: str | None = "success", **more: Any) -> Run:
    run = {"run_id": f"s{day}", "date": BEGIN + day * DAY, "at": BEGIN + day * DAY, **more}
    return Run(key(day), state, **run)


@pytest.fixture(scope="module", autouse=True)
def tasks(database: sessionmaker[Session]) -> None:
    fails = {"state": "failed", "entry": None, "failure": WHY.to_json()}
    with database() as session:
        for dag, days in TASKS.items():
            write_schedule(session, dag, "ask", following=BEGIN + days * DAY)
        write_runs(session, "good", "ask", [daily(0), daily(1, entry=figures(600, 12))])
        write_runs(session, "green", "ask", [
            daily(0), daily(1, **fails), daily(2, **fails), daily(3),
            Run(key(2), run_id="again", at=BEGIN + 9 * DAY),
        ])  # fmt: skip
        write_runs(session, "early", "ask", [daily(0), daily(1, **fails, has_slice=False), daily(2)])
        write_runs(session, "manual", "ask", [
            Run("", run_id="before", at=BEGIN, **fails, has_slice=False), daily(1),
            Run("", run_id="after", at=BEGIN + 2 * DAY, **fails, has_slice=False),
        ])  # fmt: skip
        write_runs(session, "gaps", "ask", [daily(0), daily(3)])
        write_runs(session, "running", "ask", [daily(day) for day in range(4)])
        write_runs(session, "running", "ask", [daily(4, "running", entry=None)])
        write_runs(session, "many", "ask", [daily(day) for day in range(90) if day != 10])
        write_runs(session, "many", "ask", [Run("part 9", run_id="p9"), Run("part 10", run_id="p10")])
        write_runs(session, "cleaned", "ask", [daily(day) for day in range(2)])
        keep_runs(session, "cleaned", "ask", [daily(day) for day in range(2)], "cleaned")
        clean_runs(session, "cleaned")
        write_runs(session, "trials", "ask", [Run("t", entry=figures(outcome="published", trial="small"))])


@pytest.fixture
def overview(client_of: ClientOf, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    monkeypatch.setitem(DAGS, "ann", set(TASKS))

    def ask(**query: Any) -> list[dict[str, Any]]:
        answer = client_of("ann").get("/ray-llm/api/tasks", params=query)
        assert answer.status_code == 200, answer.text
        tasks: list[dict[str, Any]] = answer.json()["tasks"]
        return tasks

    return ask


Overview = Callable[..., list[dict[str, Any]]]


def of(overview: Overview, dag: str) -> dict[str, Any]:
    return next(task for task in overview() if task["dag_id"] == dag)


def test_tasks_with_failures_come_first_however_green_their_newest_run_is(overview: Overview) -> None:
    assert [task["dag_id"] for task in overview()][:3] == ["early", "green", "manual"]
    green = of(overview, "green")
    assert green["states"] == {"failed": 1, "published": 3}
    assert [mark["state"] for mark in green["last"]] == ["published", "failed", "published", "published"]
    assert green["failed"]["mark"]["slice_key"] == key(1)
    assert green["failed"]["failure"]["sentence"] == WHY.sentence
    assert green["failed"]["failure"]["row_texts"] == []


def test_run_that_failed_before_its_slice_counts_until_another_comes_to_it(
    overview: Overview, database: sessionmaker[Session]
) -> None:
    assert of(overview, "early")["states"] == {"failed": 1, "published": 2}
    assert [mark["slice_key"] for mark in of(overview, "early")["last"]] == [key(0), key(1), key(2)]
    manual = of(overview, "manual")
    assert manual["failed"]["mark"] == {
        "slice_key": None, "state": "failed", "run_id": "after", "map_index": -1, "has_slice": False,
    }  # fmt: skip
    assert manual["states"] == {"failed": 1, "published": 1}


def test_missing_slices_are_told_and_looked_for(overview: Overview) -> None:
    assert of(overview, "gaps")["states"] == {"published": 2, "missing": 3}
    assert [mark["state"] for mark in of(overview, "gaps")["last"]] == [
        "published", "missing", "missing", "published", "missing",
    ]  # fmt: skip
    assert "gaps" in {task["dag_id"] for task in overview(state="missing")}
    assert "many" not in {task["dag_id"] for task in overview(state="missing")}


def test_missing_slices_before_the_first_run_are_told_where_all_runs_are(
    overview: Overview, database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DAGS, "ann", {"late"})
    with database() as session:
        write_schedule(session, "late", "ask", start_date=BEGIN, catchup=True, following=BEGIN + 3 * DAY)
        write_runs(session, "late", "ask", [daily(2)])
    assert of(overview, "late")["states"] == {"missing": 2, "published": 1}


def test_tasks_are_found_by_name_and_state_and_ordered_as_asked(overview: Overview) -> None:
    assert [task["dag_id"] for task in overview(name="GREE")] == ["green"]
    assert [task["dag_id"] for task in overview(name="ask", order="name")] == sorted(TASKS)
    assert [task["dag_id"] for task in overview(state="running")] == ["running"]
    assert overview(order="newest")[0]["dag_id"] == "many"
    assert overview(name="nothing is called so") == []
    assert [task["dag_id"] for task in overview(order="name", offset=1, limit=2)] == sorted(TASKS)[1:3]


def test_only_the_newest_runs_are_looked_at_and_the_page_says_so(overview: Overview) -> None:
    many = of(overview, "many")
    assert (many["runs"], many["is_all"], of(overview, "good")["is_all"]) == (91, False, True)
    assert many["states"] == {"published": 60}  # no day before them is missing
    assert [mark["slice_key"] for mark in many["last"]][-3:] == [key(89), "part 9", "part 10"]
    assert len(many["last"]) == 30


def test_worst_of_a_run_s_slices_of_one_name_is_told(
    overview: Overview, database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DAGS, "ann", {"mapped"})
    with database() as session:
        write_runs(session, "mapped", "ask", [
            daily(0, map_index=0), daily(0, "failed", map_index=1, entry=None), daily(0, map_index=2),
        ])  # fmt: skip
    assert of(overview, "mapped")["states"] == {"failed": 1}


def test_slices_of_runs_that_airflow_removed_are_there_and_trials_are_none(overview: Overview) -> None:
    cleaned = of(overview, "cleaned")
    assert (cleaned["runs"], cleaned["newest"], cleaned["states"]) == (0, None, {"published": 2})
    assert [mark["slice_key"] for mark in cleaned["last"]] == [key(0), key(1)]
    assert of(overview, "trials")["last"] == []


def test_task_of_which_every_run_failed_before_its_slice_is_listed(
    overview: Overview, database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DAGS, "ann", {*TASKS, "never"})
    with database() as session:
        write_schedule(session, "never", "ask")
        run = daily(0, "failed", entry=None, has_slice=False, failure=WHY.to_json())
        write_runs(session, "never", "ask", [run])
    assert of(overview, "never")["failed"]["failure"]["sentence"] == WHY.sentence


def test_last_failure_says_how_many_other_reasons_there_are(
    overview: Overview, database: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [
        Failure("input", "slice 2026-03-01 is empty"), Failure("input", "slice 2026-03-02 is empty"), None,
        Failure("engine", "the node died"), Failure("input", "slice 2026-03-05 is empty"),
    ]  # fmt: skip
    with database() as session:
        write_runs(session, "many-reasons", "infer", [
            daily(day, "failed", entry=None, failure=failure and failure.to_json())
            for day, failure in enumerate(told)
        ])  # fmt: skip
    monkeypatch.setitem(DAGS, "ann", {"many-reasons"})
    failed = of(overview, "many-reasons")["failed"]
    assert failed["failure"]["sentence"] == "slice 2026-03-05 is empty"
    assert failed["others"] == 2
