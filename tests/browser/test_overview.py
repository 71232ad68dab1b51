"""All tasks at a glance, and a task's failures and gaps: what a person should do something about is first."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from playwright.sync_api import Page, expect

from airflow_provider_raydatallm.contract.result.failure import Failure
from tests.support.looks import look
from tests.support.slice_index import BEGIN, Run, figures, write_runs, write_schedule
from tests.support.ui_server import UiServer

TASK = "ask"
DAY = dt.timedelta(1)
WHY = Failure("input", "the input has no column 'mail'", advice=("Its columns are a and <b>b</b>",))
OUTAGE = Failure("model", "no model <b>lama</b>\u202e")


def key(day: int) -> str:
    return (BEGIN + day * DAY).date().isoformat()


def daily(day: int, state: str = "success", failure: Failure | None = None, has_slice: bool = True) -> Run:
    return Run(
        key(day), state, run_id=f"s{day}", date=BEGIN + day * DAY, at=BEGIN + day * DAY, has_slice=has_slice,
        **({} if failure is None else {"entry": None, "failure": failure.to_json()}),
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer) -> None:
    with ui.database() as session:
        write_runs(session, "a_good_one", TASK, [daily(day) for day in range(3)])
        write_runs(session, "worst", TASK, [
            daily(0), daily(1, "failed", WHY), daily(3, "failed", OUTAGE, has_slice=False), daily(4),
            Run("", "failed", run_id="by-hand", at=BEGIN + 9 * DAY, entry=None, has_slice=False),
        ])  # fmt: skip
        for dag, days in (("a_good_one", 3), ("worst", 5)):
            write_schedule(session, dag, TASK, following=BEGIN + days * DAY)


def test_overview_begins_with_failures_and_finds_what_is_looked_for(page: Page) -> None:
    page.goto("/plugin/ray-llm")
    tasks = page.locator("#ray-llm ul > li")
    worst = tasks.filter(has_text=f"worst / {TASK}")
    expect(worst).to_contain_text("Failed 3")
    expect(worst).to_contain_text("Missing 1")
    names = tasks.locator("a").filter(has_text=f" / {TASK}").all_inner_texts()
    assert names.index(f"worst / {TASK}") < names.index(f"a_good_one / {TASK}")
    strip = worst.get_by_label("Last slices").locator("a, [role=img]")
    expect(strip.nth(1)).to_have_accessible_name(f"{key(1)}: Failed")
    expect(strip.nth(2)).to_have_accessible_name(f"{key(2)}: Missing")
    page.get_by_label("Search").fill("a_good")
    expect(tasks).to_have_count(1)
    page.get_by_label("With slices that are").select_option("failed")
    expect(page.get_by_text("No task is so.")).to_be_visible()
    page.get_by_label("Search").fill("")
    expect(worst).to_be_visible()
    look(page, "overview")


def test_task_says_first_what_failed_and_why(page: Page) -> None:
    page.goto(f"/plugin/ray-llm/dags/worst/tasks/{TASK}")
    failed = page.get_by_role("table").get_by_role("row")
    expect(failed.nth(1)).to_contain_text("by-hand")
    expect(failed.nth(1)).to_contain_text("left no reason")
    expect(failed.nth(2)).to_contain_text(r"No model <b>lama</b>\u202e")
    expect(failed.nth(3)).to_contain_text("The input has no column 'mail'.")
    expect(failed.nth(3)).to_contain_text("Its columns are a and <b>b</b>")
    cell = page.get_by_role("link", name=f"{key(1)}: Failed: the input has no column 'mail'")
    expect(cell).to_have_attribute("href", re.compile("/runs/s1/-1$"))
    look(page, "failures")


def test_slice_that_waits_for_a_person_leads_to_the_decision(page: Page, ui: UiServer) -> None:
    gates = [{"of": "truncated", "value": 0.042, "max": 0.02, "verdict": "held"}]
    held = figures(600, outcome="held", published_version=None, gates=gates)
    with ui.database() as session:
        write_runs(session, "held", TASK, [
            daily(0), Run(key(1), "awaiting_input", run_id="s1", entry=held, at=BEGIN + DAY),
        ])  # fmt: skip
    page.goto("/plugin/ray-llm")
    expect(page.locator("#ray-llm ul > li").filter(has_text="held / ask")).to_contain_text("person 1")
    page.get_by_role("link", name=f"{key(1)}: Waiting for a person").click()
    expect(page.get_by_text("nothing of them is published")).to_be_visible()
    expect(page.get_by_role("row", name="truncated 0.042 at most 0.02 Left to a person")).to_be_visible()
    decide = page.get_by_role("link", name="Approve or reject")
    expect(decide).to_have_attribute("href", re.compile(f"/dags/held/runs/s1/tasks/{TASK}/required_actions$"))
    expect(page.get_by_role("button", name="Answer all rows again")).to_have_count(0)
    look(page, "held")


def test_states_are_filters_and_a_missing_day_opens_its_own_backfill(page: Page) -> None:
    details = {"is_paused": False, "is_backfillable": True, "timetable_partitioned": False}
    page.route("**/api/v2/dags/worst/details", lambda route: route.fulfill(json=details))
    asked: list[str | None] = []

    def answer(route: object) -> None:
        asked.append(route.request.post_data)  # type: ignore[attr-defined]
        route.fulfill(json={"backfills": [{"logical_date": f"{key(2)}T00:00:00Z"}]})  # type: ignore[attr-defined]

    page.route("**/api/v2/backfills/dry_run", answer)
    page.goto(f"/plugin/ray-llm/dags/worst/tasks/{TASK}")
    published = page.get_by_role("link", name=re.compile(f"^{key(0)}: Published")).locator("> *")
    expect(published).to_have_css("opacity", "1")
    page.get_by_role("button", name="Failed 2").click()
    expect(published).to_have_css("opacity", "0.25")
    page.get_by_role("button", name="Failed 2").click()
    expect(published).to_have_css("opacity", "1")
    page.get_by_role("button", name=f"{key(2)}: Missing").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"four runs at a time, of {key(2)}.")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert len(asked) == 1
