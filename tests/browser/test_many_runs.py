"""A task with more runs than are loaded at once: what the page has not seen is no gap."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.slice_index import BEGIN, Run, write_runs, write_schedule
from tests.support.ui_server import UiServer

DAG, TASK = "years", "ask"
DAY = dt.timedelta(1)
DAYS, GAP = 450, 440


def key(day: int) -> str:
    return (BEGIN + day * DAY).date().isoformat()


def date_of(day: str) -> dt.datetime:
    return dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC)


def at(day: int) -> dt.datetime:
    return BEGIN + (day + 1) * DAY


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer) -> None:
    runs = [Run(key(day), at=at(day), date=BEGIN + day * DAY) for day in range(DAYS) if day != GAP]
    again = Run(key(2), run_id="again", at=at(DAYS))
    with ui.database() as session:
        write_runs(session, DAG, TASK, [*runs, again])
        write_schedule(session, DAG, TASK, following=BEGIN + DAYS * DAY)


def test_old_slice_that_runs_again_makes_no_gap_of_those_that_are_not_loaded(
    page: Page, ui: UiServer
) -> None:
    page.clock.install()
    details = {"is_paused": False, "is_backfillable": True, "timetable_partitioned": False}
    page.route("**/api/v2/dags/years/details", lambda route: route.fulfill(json=details))
    page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}")
    missing = page.get_by_role("button", name=re.compile(": Missing"))
    expect(page.get_by_text(f"400 of {DAYS} runs are loaded")).to_be_visible()
    expect(missing).to_have_count(1)
    expect(missing).to_have_accessible_name(f"{key(GAP)}: Missing")
    expect(page.get_by_role("button", name="Fill 1 missing")).to_be_visible()

    # Each new run moves one from the first page to the second.
    page.get_by_role("button", name="Load older runs").click()
    expect(page.get_by_text("runs are loaded")).to_have_count(0)
    expect(missing).to_have_count(1)
    with ui.database() as session:
        write_runs(session, DAG, TASK, [Run(key(DAYS), "running", entry=None, at=at(DAYS + 1))])
    page.clock.fast_forward(16_000)
    expect(page.get_by_role("link", name=f"{key(DAYS)}: Running")).to_be_visible()
    expect(missing).to_have_count(1)


def test_run_that_failed_before_its_slice_is_not_shown_where_a_run_that_is_not_loaded_has_the_slice(
    page: Page, ui: UiServer
) -> None:
    runs = [Run(key(day), run_id=f"s{day}", at=at(day), date=at(day), has_slice=day != 5,
                state="failed" if day == 5 else "success") for day in range(DAYS)]  # fmt: skip
    with ui.database() as session:
        write_runs(session, "failures", "fails", [*runs, Run(key(5), run_id="by-hand", at=at(6))])
    page.goto("/plugin/ray-llm/dags/failures/tasks/fails")
    expect(page.get_by_text(f"400 of {DAYS} runs are loaded")).to_be_visible()
    expect(page.get_by_text("Published 400")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Failed \d"))).to_have_count(0)
    page.get_by_role("button", name="Load older runs").click()
    expect(page.get_by_text(f"Published {DAYS}")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Failed \d"))).to_have_count(0)


def test_dialog_stays_and_says_what_it_said_when_the_gap_fills_meanwhile(page: Page, ui: UiServer) -> None:
    days = ["2026-01-01", "2026-01-02", "2026-01-05"]
    with ui.database() as session:
        write_runs(session, "gap", TASK, [Run(day, date=date_of(day)) for day in days])
        write_schedule(session, "gap", TASK, following=date_of("2026-01-06"))
    page.clock.install()
    details = {"is_paused": False, "is_backfillable": True, "timetable_partitioned": False}
    dates = [{"logical_date": f"2026-01-0{day}T00:00:00Z"} for day in (3, 4)]
    asked: list[str | None] = []

    def answer(route: Route) -> None:
        asked.append(route.request.post_data)
        route.fulfill(json={"backfills": dates})

    page.route("**/api/v2/dags/gap/details", lambda route: route.fulfill(json=details))
    page.route("**/api/v2/backfills**", answer)
    page.route("**/api/v2/backfills/dry_run", answer)
    page.goto(f"/plugin/ray-llm/dags/gap/tasks/{TASK}")
    page.get_by_role("button", name="Fill 2 missing").click()
    dialog = page.get_by_role("dialog")
    for n, day in enumerate(("2026-01-03", "2026-01-04")):
        expect(dialog).to_contain_text("2026-01-03, 2026-01-04" if n == 0 else "Started")
        with ui.database() as session:
            write_runs(session, "gap", TASK, [Run(day, "running", entry=None, at=BEGIN + (n + 9) * DAY)])
        page.clock.fast_forward(16_000)
        expect(page.locator("#ray-llm a", has_text="\u25b6")).to_have_count(n + 1)
        if n == 0:
            dialog.get_by_role("button", name="Fill 2 missing").click()
    expect(dialog).to_contain_text("Started")
    dry_run, created = asked
    assert dry_run == created
    dialog.get_by_role("button", name="Close").first.click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^Fill"))).to_have_count(0)


def test_gap_of_a_dag_without_a_schedule_is_not_for_a_backfill(page: Page) -> None:
    details = {"is_paused": False, "is_backfillable": False, "timetable_partitioned": False}
    page.route("**/api/v2/dags/years/details", lambda route: route.fulfill(json=details))
    with page.expect_response("**/api/v2/dags/years/details"):
        page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}")
    expect(page.get_by_role("img", name=f"{key(GAP)}: Missing")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Fill"))).to_have_count(0)
