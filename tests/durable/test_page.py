"""The page in Airflow's UI, as a person sees it in a browser: real runs, from the calendar to a slice, and
what a person does there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support import browser
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for
from tests.support.looks import look, take
from tests.support.tables import ROWS, Table

DAG_ID = "paged_waiting"
DAYS = ("2025-01-01", "2025-01-02", "2025-01-03")
FAILING = 3


@pytest.fixture(scope="module")
def page(airflow: Airflow) -> Iterator[Page]:
    program = browser.chromium()
    if program is None:
        pytest.skip("no Chromium: install chromium, or run `playwright install chromium`")
    with browser.logged_in(airflow, program) as page:
        expect.set_options(timeout=180_000)
        page.failures = []  # type: ignore[attr-defined]
        page.on("pageerror", lambda error: page.failures.append(str(error)))  # type: ignore[attr-defined]
        yield page
        assert page.failures == []  # type: ignore[attr-defined]


def test_person_finds_a_day_watches_it_answers_its_quarantine_again_and_fills_a_gap(
    airflow: Airflow, page: Page, make_table: Callable[..., Table], data: Path
) -> None:
    api, [first, gap, last] = airflow.api, DAYS
    table = make_table(gap, name=DAG_ID)
    bad = [f"fail {i} <b>&" if i < FAILING else f"row {i}" for i in range(ROWS)]
    table.write(first, names=bad)
    table.write(last)
    table.hold(last, 1)
    done = api.trigger(DAG_ID, conf={"slice": first})
    api.finish(done)
    running = api.trigger(DAG_ID, conf={"slice": last})
    table.wait_answered(last, 1)

    # From the navigation to the calendar.
    page.get_by_role("link", name="Ray LLM").click()
    page.get_by_role("link", name=f"{DAG_ID} / ask").click()
    expect(day(page, first)).to_have_accessible_name(
        f"{first}: Published, with rows in quarantine, {ROWS - FAILING} rows, {FAILING} in quarantine"
    )
    expect(page.get_by_label(f"{gap}: Missing")).to_be_visible()
    expect(day(page, last)).to_have_accessible_name(f"{last}: Running")
    look(page, "calendar")

    # A running slice, to its end, without a reload.
    day(page, last).click()
    expect(page.get_by_text(f"10 of {ROWS}")).to_be_visible()
    look(page, "running")
    table.release(last)
    expect(page.get_by_text(f"{ROWS} planned = {ROWS} answered + 0 in quarantine")).to_be_visible()
    assert api.finish(running) == "success"

    # The numbers are the report's.
    page.get_by_role("link", name=f"{DAG_ID} / ask").click()
    day(page, first).click()
    report = json.loads(Path(api.xcom(done)["report_path"]).read_text())
    expect(page.get_by_text(re.compile("planned ="))).to_have_text(
        "{planned} planned = {succeeded} answered + {quarantined} in quarantine".format(**report["counts"])
    )
    for name in ("input", "output"):
        expect(figure(page, f"Tokens {'in' if name == 'input' else 'out'}")).to_contain_text(
            f"{report['tokens'][name]:,}"
        )
    expect(page.get_by_role("img", name="Rows per second over time")).to_be_visible()
    assert sum(report["history"]["rows"]) == ROWS
    expect(page.get_by_role("link", name=DAG_ID, exact=True)).to_have_attribute(
        "href", re.compile(r"/assets/\d+$")
    )
    expect(section(page, "Why rows are in quarantine")).to_contain_text(f"ValueError{FAILING} (100%)")
    look(page, "slice")
    page.get_by_role("button", name="Rows in quarantine").click()
    expect(page.get_by_role("cell", name="ValueError: it begins with fail")).to_have_count(FAILING)
    expect(page.get_by_role("cell", name="fail 0 <b>&")).to_have_count(1)  # as text
    take(page, "rows")

    # Its link is on Airflow's own page of the task.
    page.get_by_role("link", name="Task instance and log").click()
    page.get_by_role("link", name="Details", exact=True).click()
    page.get_by_role("link", name="Slice", exact=True).click()
    expect(page.get_by_role("heading", name=first)).to_be_visible()

    # Quarantined rows, again.
    table.heal(first)
    before = {run["dag_run_id"] for run in api.runs(DAG_ID)}
    confirm(page, "Answer quarantined rows again", f"{FAILING} rows in quarantine")
    again = Task(DAG_ID, new_run(airflow, before))
    assert api.run(again)["conf"] == {"slice": first, "retry_quarantined": True}
    assert api.finish(again) == "success"
    page.get_by_role("link", name=again.run_id).click()
    page.goto(f"/plugin/ray-llm/dags/{DAG_ID}/tasks/ask")
    expect(day(page, first)).to_have_accessible_name(f"{first}: Published, {ROWS} rows")

    # The gap.
    before = {run["dag_run_id"] for run in api.runs(DAG_ID)}
    confirm(page, "Fill 1 missing", f"four runs at a time, of {gap}. Dates")
    expect(page.get_by_text("Started. Its days wait here")).to_be_visible()
    page.get_by_role("button", name="Close").first.click()
    filled = Task(DAG_ID, new_run(airflow, before))
    assert api.finish(filled) == "success"
    expect(day(page, gap)).to_have_accessible_name(f"{gap}: Published, {ROWS} rows")
    api.end_backfills(DAG_ID)


@pytest.mark.skipif(
    version("apache-airflow").startswith("3.2."), reason="Airflow 3.2 keeps nothing with an asset"
)
def test_run_that_airflow_has_no_more_stays_in_the_calendar(airflow: Airflow, page: Page) -> None:
    """After the test above: its asset keeps the figures."""
    gap = DAYS[1]
    filled = next(run for run in airflow.api.runs(DAG_ID) if run["run_type"] == "backfill")
    airflow.api.delete_run(Task(DAG_ID, filled["dag_run_id"]))
    page.goto(f"/plugin/ray-llm/dags/{DAG_ID}/tasks/ask")
    expect(day(page, gap)).to_have_accessible_name(f"{gap}: Published, {ROWS} rows")
    day(page, gap).click()
    expect(page.get_by_text("Airflow has removed this run; its figures are kept.")).to_be_visible()
    expect(page.get_by_text(f"{ROWS} planned = {ROWS} answered + 0 in quarantine")).to_be_visible()


def test_page_is_reached_and_left_by_the_keyboard_alone(page: Page) -> None:
    """After the tests above, whose slices are there."""
    page.goto(f"/plugin/ray-llm/dags/{DAG_ID}/tasks/ask")
    day(page, DAYS[0]).focus()
    page.keyboard.press("Tab")
    expect(day(page, DAYS[1])).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=DAYS[1])).to_be_visible()
    button = page.get_by_role("button", name="Answer all rows again")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(button).to_be_focused()


def test_failed_run_says_why_and_what_to_do_wherever_it_is_shown(airflow: Airflow, page: Page) -> None:
    """After the tests above. What the task itself wrote is shown, not what a test would write for it."""
    key = "2025-02-01"
    run = airflow.api.trigger(DAG_ID, conf={"slice": key})
    assert airflow.api.finish(run) == "failed"
    failure = airflow.api.xcom(run, "ray_llm_failure")
    assert failure["sentence"]
    assert failure["advice"]
    page.goto("/plugin/ray-llm")
    task = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=f"{DAG_ID} / ask"))
    expect(task).to_contain_text("Failed 1")
    sentence = failure["sentence"]
    expect(task).to_contain_text(f"{key}: {sentence[0].upper()}{sentence[1:]}")
    page.goto(f"/plugin/ray-llm/dags/{DAG_ID}/tasks/ask")
    row = page.get_by_role("row").filter(has_text=key)
    for text in (failure["sentence"], *failure["advice"]):
        expect(row).to_contain_text(text[1:])  # which begins with a capital on the page
    row.get_by_role("link", name=key).click()
    for text in (failure["sentence"], *failure["advice"]):
        expect(page.get_by_role("alert")).to_contain_text(text[1:])
    look(page, "failed")


def day(page: Page, key: str) -> Locator:
    """In the calendar: the overview, which stays until the calendar is there, has links of this name too."""
    return section(page, "Slices").get_by_role("link", name=re.compile(f"^{key}: "))


def figure(page: Page, name: str) -> Locator:
    return section(page, "Result").get_by_text(name, exact=True).locator("..")


def section(page: Page, title: str) -> Locator:
    return page.locator("#ray-llm section").filter(has=page.get_by_role("heading", name=title, exact=True))


def confirm(page: Page, name: str, says: str) -> None:
    page.get_by_role("button", name=name).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(says)
    look(page, f"confirm-{name.split()[0].lower()}")
    dialog.get_by_role("button", name=name).click()
    expect(dialog).to_contain_text("Started")


def new_run(airflow: Airflow, before: set[str]) -> str:
    def newest() -> str | None:
        runs = {run["dag_run_id"] for run in airflow.api.runs(DAG_ID)} - before
        return runs.pop() if runs else None

    return wait_for(newest, LIMIT, "a new run")
