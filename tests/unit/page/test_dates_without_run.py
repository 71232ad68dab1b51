"""What the page calls missing: dates that somebody wanted, by the DAG's timetable, and that have no run."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.models.backfill import Backfill
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import Asset, CronDataIntervalTimetable, CronPartitionTimetable
from fastapi.testclient import TestClient
from sqlalchemy import delete
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_raydatallm.page import dates_without_run
from airflow_provider_raydatallm.task.expected_slices import ExpectedSlices
from tests.support.slice_index import Run, clean_runs, keep_runs, write_runs, write_schedule

ClientOf = Callable[[str | None], TestClient]

DAY = dt.timedelta(days=1)
DAILY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
_names = itertools.count()


def march(day: int) -> dt.datetime:
    return dt.datetime(2026, 3, day, tzinfo=dt.UTC)


class Table:
    """A daily task as Airflow's database has it; `bob` may read it."""

    def __init__(self, session: Session, client: Any, schedule: Any = DAILY, **given: Any) -> None:
        self.session, self.client, self.task = session, client, f"daily_{next(_names)}"
        clean_runs(session, "photos")
        session.execute(delete(Backfill))
        write_schedule(session, "photos", self.task, schedule, **{"start_date": march(1), **given})

    def next_is(self, date: dt.datetime | None, *, is_paused: bool = False) -> None:
        dag = self.session.get(DagModel, "photos")
        assert dag is not None
        dag.next_dagrun, dag.is_paused = date, is_paused
        self.session.commit()

    def ran(self, *days: int, run_type: str = "scheduled", **more: Any) -> None:
        runs = [Run(f"2026-03-{day:02}", date=march(day), run_id=f"r{day}", **more) for day in days]
        write_runs(self.session, "photos", self.task, runs)
        for run in runs:
            row = self.session.query(DagRun).filter_by(dag_id="photos", run_id=run.run_id).one()
            row.run_type = run_type
        self.session.commit()

    def backfilled(self, first: int, last: int) -> None:
        self.session.add(Backfill(dag_id="photos", from_date=march(first), to_date=march(last)))
        self.session.commit()

    def page(self) -> dict[str, Any]:
        answer = self.client.get(f"/ray-llm/api/dags/photos/tasks/{self.task}/slices")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def slices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.page()["slices"]
        return found

    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page()["without_run"]
        return found

    def missing(self) -> list[str]:
        for _ in range(50):
            if not (found := self.answer())["is_pending"]:
                break
            time.sleep(0.1)
        assert found["note"] is None
        known = {line["slice_key"] for line in self.slices()}  # as the page has it
        keys = [one["slice_key"] for one in found["dates"] if not one["archived"]]
        return [key for key in keys if key not in known]


@pytest.fixture
def session(database: sessionmaker[Session]) -> Any:
    with database() as session:
        yield session
        for model in (SerializedDagModel, Backfill):
            session.execute(delete(model))
        session.commit()


def test_day_between_slices_that_lie_near_each_other_is_missing_whoever_made_them(
    session: Session, client_of: ClientOf
) -> None:
    table = Table(session, client_of("bob"))
    by_hand = [f"2026-03-0{day}" for day in (1, 3, 4, 5)] + ["2026-11-26", "by hand"]
    write_runs(session, "photos", table.task, [Run(key, run_id=f"of {key}") for key in by_hand])
    assert table.missing() == ["2026-03-02"]
    write_runs(session, "photos", table.task, [Run("2026-03-02", run_id="later")])
    assert table.missing() == []


def test_two_slices_far_from_each_other_say_nothing_of_the_days_between(
    session: Session, client_of: ClientOf
) -> None:
    table = Table(session, client_of("bob"))
    write_runs(session, "photos", table.task, [Run("2026-01-05"), Run("2026-03-23")])
    assert table.missing() == []


def test_day_that_a_backfill_left_out_is_missing(session: Session, client_of: ClientOf) -> None:
    table = Table(session, client_of("bob"))
    table.ran(1, 2, run_type="backfill")
    assert table.missing() == []
    table.backfilled(1, 3)
    assert table.missing() == ["2026-03-03"]
    table.ran(3, run_type="backfill")
    assert table.missing() == []


def test_without_catch_up_the_schedule_is_asked_from_its_first_run_on(
    session: Session, client_of: ClientOf
) -> None:
    table = Table(session, client_of("bob"))
    table.ran(3, 5)
    table.next_is(march(8))
    assert table.missing() == ["2026-03-07", "2026-03-06", "2026-03-04"]
    table.next_is(march(8), is_paused=True)  # nobody wants what would come next
    assert table.missing() == ["2026-03-04"]


def test_with_catch_up_it_is_asked_from_its_start_to_its_end(session: Session, client_of: ClientOf) -> None:
    table = Table(session, client_of("bob"), catchup=True, end_date=march(6))
    table.ran(3, 5)
    assert table.missing() == ["2026-03-06", "2026-03-04", "2026-03-02", "2026-03-01"]


def test_run_of_a_person_for_a_date_makes_not_the_slice_of_that_date(
    session: Session, client_of: ClientOf
) -> None:
    table = Table(session, client_of("bob"))
    table.ran(1, 3)
    table.ran(2, run_type="manual", state="failed", has_slice=False)
    assert table.missing() == ["2026-03-02"]


def test_date_that_is_not_due_is_not_missing(session: Session, client_of: ClientOf) -> None:
    today = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    table = Table(session, client_of("bob"), start_date=today - 3 * DAY, catchup=True)
    table.next_is(today + 5 * DAY)
    session.add(Backfill(dag_id="photos", from_date=today, to_date=today + 5 * DAY))
    session.commit()
    assert table.missing() == [(today - n * DAY).date().isoformat() for n in (1, 2, 3)]


def test_failed_run_is_no_missing_slice(session: Session, client_of: ClientOf) -> None:
    table = Table(session, client_of("bob"))
    table.ran(1, 3)
    table.ran(2, state="failed", entry=None)
    assert table.missing() == []


def test_slice_whose_run_airflow_removed_is_not_missing(session: Session, client_of: ClientOf) -> None:
    table = Table(session, client_of("bob"))
    keep_runs(session, "photos", table.task, [Run("2026-03-02", run_id="gone")], f"asset_{table.task}")
    table.ran(1, 3)
    assert table.missing() == []
    assert [one["archived"] for one in table.answer()["dates"]] == [True]


def test_partitions_are_named_and_dated_as_airflow_s_backfill_takes_them(
    session: Session, client_of: ClientOf
) -> None:
    schedule = CronPartitionTimetable("0 0 * * *", timezone="Asia/Taipei", key_format="%Y-%m-%d")
    table = Table(session, client_of("bob"), schedule)
    table.backfilled(1, 3)
    write_runs(session, "photos", table.task, [Run("2026-03-02", run_id="p2")])
    row = session.query(DagRun).filter_by(dag_id="photos", run_id="p2").one()
    row.partition_key = "2026-03-02"
    session.commit()
    assert table.missing() == ["2026-03-03", "2026-03-01"]
    dates = [dt.datetime.fromisoformat(one["date"]) for one in table.answer()["dates"]]
    assert dates == [march(3), march(1)]


@pytest.mark.parametrize("schedule", [Asset("table"), "@once"])
def test_without_a_schedule_nothing_is_missing(session: Session, client_of: ClientOf, schedule: Any) -> None:
    table = Table(session, client_of("bob"), schedule)
    table.ran(1, 3)
    assert table.missing() == []


def test_run_that_has_not_come_to_its_slice_has_its_name(session: Session, client_of: ClientOf) -> None:
    table = Table(session, client_of("bob"))
    to_come = Run("", state="queued", has_slice=False, date=march(4), run_id="r4")
    write_runs(session, "photos", table.task, [to_come, Run("2026-03-03", date=march(3))])
    answer = client_of("bob").get(f"/ray-llm/api/dags/photos/tasks/{table.task}/slices").json()
    assert [(one["run_id"], one["slice_key"]) for one in answer["without_slice"]] == [("r4", "2026-03-04")]


def test_why_it_is_not_known_is_said(session: Session, client_of: ClientOf) -> None:
    table = Table(session, client_of("bob"))
    session.execute(delete(SerializedDagModel))
    session.commit()
    assert "no such DAG" in table.answer()["note"]


def test_timetable_that_failed_is_asked_anew_and_what_it_raised_is_not_told_again(
    session: Session, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, between, asked = threading.Event(), ExpectedSlices.between, []

    def fails_once(slices: ExpectedSlices, *dates: dt.datetime) -> Any:
        asked.append(dates)
        if len(asked) == 1:
            raise ValueError("broken")
        goes_on.wait(30)
        return between(slices, *dates)

    monkeypatch.setattr(ExpectedSlices, "between", fails_once)
    table = Table(session, client_of("bob"))
    table.ran(1, 3)
    assert table.answer()["note"] == "the DAG's timetable fails: broken"
    assert table.answer()["is_pending"]
    goes_on.set()
    assert table.missing() == ["2026-03-02"]


def test_timetable_that_takes_long_holds_no_request_up(
    session: Session, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, between, asked = threading.Event(), ExpectedSlices.between, []

    def slow(slices: ExpectedSlices, *dates: dt.datetime) -> Any:
        asked.append(dates)
        goes_on.wait(30)
        return between(slices, *dates)

    monkeypatch.setattr(ExpectedSlices, "between", slow)
    table = Table(session, client_of("bob"), end_date=march(7))
    table.ran(1, 3)
    for _ in range(3):
        assert table.answer()["is_pending"]
    assert len(asked) == 1
    goes_on.set()
    assert table.missing() == ["2026-03-07", "2026-03-06", "2026-03-05", "2026-03-04", "2026-03-02"]


def test_newest_are_listed_and_all_are_counted(
    session: Session, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dates_without_run, "_MOST_LISTED", 2)
    table = Table(session, client_of("bob"))
    table.backfilled(1, 9)
    assert table.missing() == ["2026-03-09", "2026-03-08"]
    assert table.answer()["total"] == 9
