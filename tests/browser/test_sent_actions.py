"""What became of what a person sent, and in which language they read of it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.slice_index import Run, write_runs
from tests.support.ui_server import UiServer

DAG, TASK = "duty", "ask"
PATH = f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}"


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer) -> None:
    with ui.database() as session:
        write_runs(session, DAG, TASK, [Run("2026-01-02", run_id="published")])


@pytest.fixture
def dag(page: Page) -> None:
    """The DAG as Airflow would know it, which has never parsed it."""
    details = {"is_paused": False, "params": {"slice": None, "force": None}, "timetable_partitioned": False}
    page.route(re.compile("/dags/duty/details"), lambda route: route.fulfill(json=details))
    page.route(
        re.compile("/dags/duty/tasks$"), lambda route: route.fulfill(json={"tasks": [{"task_id": TASK}]})
    )


@pytest.mark.usefixtures("dag")
def test_action_without_an_answer_may_have_begun(page: Page) -> None:
    held: list[Route] = []
    page.route("**/dagRuns", lambda route: held.append(route))
    page.goto(f"{PATH}/runs/published/-1")
    page.get_by_role("button", name="Answer all rows again").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Answer all rows again").click()
    expect(dialog.get_by_role("button", name="Cancel")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog).to_be_visible()
    held[0].abort()
    expect(dialog.get_by_role("alert")).to_contain_text("Airflow gave no answer")
    expect(dialog.get_by_role("alert")).to_contain_text("It may have begun all the same")
    dialog.get_by_role("button", name="Close").first.click()
    expect(dialog).to_be_hidden()
    assert len(held) == 1


@pytest.mark.usefixtures("dag")
def test_page_is_english_from_left_to_right_in_an_airflow_in_hebrew(page: Page) -> None:
    page.add_init_script("localStorage.setItem('i18nextLng', 'he')")
    page.goto(f"{PATH}/runs/published/-1")
    expect(page.locator("html")).to_have_attribute("dir", "rtl")
    page.get_by_role("button", name="Answer all rows again").click()
    for element in (page.locator("#ray-llm"), page.get_by_role("dialog")):
        expect(element).to_have_css("direction", "ltr")
        expect(element).to_have_attribute("lang", "en")
