"""Figures are shown as whose they are: of the run, of another one, or of a trial."""

from __future__ import annotations

import datetime as dt

import pytest
from playwright.sync_api import Page, expect

from tests.support.slice_index import BEGIN, Run, figures, write_runs
from tests.support.ui_server import UiServer

DAG, TASK = "figures", "ask"
PATH = f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}/runs"


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer) -> None:
    known = figures(600, gpu_seconds=7200)
    unchanged = {**known, "outcome": "unchanged"}
    trial = Run("2026-01-01", run_id="trial", entry=figures(10, trial="first-10"), at=BEGIN + dt.timedelta(2))
    with ui.database() as session:
        write_runs(session, DAG, TASK, [
            Run("2026-01-01", run_id="first", entry=known),
            Run("2026-01-01", run_id="again", entry=unchanged, at=BEGIN + dt.timedelta(1)), trial,
        ])  # fmt: skip
        write_runs(session, "tried", TASK, [trial])


def test_run_of_a_finished_slice_cost_nothing(page: Page) -> None:
    page.goto(f"{PATH}/first/-1")
    expect(page.get_by_text("$5.00")).to_be_visible()
    page.get_by_role("table").get_by_role("link", name="again").click()
    expect(page.get_by_text("This run found the slice finished and asked nothing.")).to_be_visible()
    expect(page.get_by_text("600 planned =")).to_be_visible()
    expect(page.get_by_text("$5.00")).to_have_count(0)


def test_trials_are_called_so_wherever_they_stand(page: Page) -> None:
    page.goto(f"{PATH}/first/-1")
    row = page.get_by_role("row", name="trial")
    expect(row.get_by_role("cell", name="published trial first-10")).to_be_visible()
    page.get_by_role("link", name="Ray LLM").last.click()
    task = page.get_by_role("listitem").filter(has_text=f"tried / {TASK}")
    expect(task).to_contain_text("Trials only")
    task.get_by_role("link", name=f"tried / {TASK}").click()
    expect(page.get_by_text("This task has had trials only")).to_be_visible()
