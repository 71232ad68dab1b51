"""A task with more runs than are loaded at once: what the page has not seen is no gap."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.slice_index import BEGIN, Run, write_runs
from tests.support.ui_server import UiServer

DAG, TASK = "years", "ask"
DAY = dt.timedelta(1)
DAYS, GAP = 450, 440


def key(day: int) -> str:
    return (BEGIN + day * DAY).date().isoformat()


def at(day: int) -> dt.datetime:
    return BEGIN + (day + 1) * DAY


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer) -> None:
    runs = [Run(key(day), at=at(day)) for day in range(DAYS) if day != GAP]
    again = Run(key(2), run_id="again", at=at(DAYS))
    with ui.database() as session:
        write_runs(session, DAG, TASK, [*runs, again])


def test_old_slice_that_runs_again_makes_no_gap_of_those_that_are_not_loaded(
    page: Page, ui: UiServer
) -> None:
    page.clock.install()
    details = {"is_paused": False, "is_backfillable": True, "timetable_partitioned": False}
    page.route("**/api/v2/dags/years/details", lambda route: route.fulfill(json=details))
    page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}")
    missing = page.get_by_role("img", name=re.compile(": Missing"))
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


def test_gap_of_a_dag_without_a_schedule_is_not_for_a_backfill(page: Page) -> None:
    details = {"is_paused": False, "is_backfillable": False, "timetable_partitioned": False}
    page.route("**/api/v2/dags/years/details", lambda route: route.fulfill(json=details))
    with page.expect_response("**/api/v2/dags/years/details"):
        page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}")
    expect(page.get_by_role("img", name=f"{key(GAP)}: Missing")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Fill"))).to_have_count(0)
