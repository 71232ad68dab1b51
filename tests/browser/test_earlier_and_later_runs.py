"""A slice with several runs: what is published, what the newest run does, and what can be done now."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from airflow_provider_raydatallm.contract.result.failure import Failure
from tests.support.looks import scrolled_sideways, sticks_out, take
from tests.support.slice_index import BEGIN, Run, figures, write_runs, write_schedule
from tests.support.ui_server import UiServer

DAG, TASK = "reruns", "ask"
PATH = f"/plugin/ray-llm/dags/{DAG}/tasks/{TASK}"
DAY = dt.timedelta(days=1)
WHY = "An engine worker died 4 times in a row, and no other is left"


@pytest.fixture(scope="module", autouse=True)
def slices(ui: UiServer) -> None:
    with ui.database() as session:
        write_runs(session, DAG, TASK, [
            Run("2026-01-01", run_id="first"), Run("2026-01-02", run_id="second"),
            Run("2026-01-01", "failed", run_id="rerun", entry=None, at=BEGIN + DAY),
            *(Run("2026-01-05", "failed", run_id=f"died-{i}", entry=None, at=BEGIN + i * DAY,
                  failure=Failure("engine", WHY).to_json()) for i in range(2)),
            Run("2026-01-03", "running", run_id="running", entry=None, at=BEGIN + DAY),
            Run("2026-01-04", run_id="old", entry=figures(600, 30), at=BEGIN),
            Run("2026-01-04", run_id="new", entry=figures(600, version=2), at=BEGIN + DAY),
        ])  # fmt: skip


def answer_for_airflow(page: Page, task: str = TASK) -> list[Any]:
    """The server's database holds no DAG. Returns the configurations of runs that the page starts."""
    started: list[Any] = []
    params = {name: {} for name in ("slice", "force", "retry_quarantined", "max_quarantine")}

    def answer(route: Route) -> None:
        place = route.request.url.split(f"/dags/{DAG}/")[1]
        if route.request.method == "POST":
            started.append(route.request.post_data_json)
        answers = {
            "details": {"is_paused": False, "params": params, "timetable_partitioned": False},
            "tasks": {"tasks": [{"task_id": task}]}, "dagRuns": {"dag_run_id": "by-hand"},
        }  # fmt: skip
        run = {"conf": {"model": "large", "force": True, "slice": "2026-01-01"}}
        route.fulfill(json=answers.get(place, run))

    page.route(f"**/api/v2/dags/{DAG}/**", answer)
    return started


def test_published_day_stays_so_in_the_calendar_when_a_later_run_fails(page: Page) -> None:
    page.goto(PATH)
    words = "2026-01-01: Failed; what an earlier run published is there: 600 rows"
    expect(page.get_by_role("link", name=words)).to_be_visible()
    expect(page.get_by_text("with ✓ at the left: what an earlier run published is there 1")).to_be_visible()
    expect(page.get_by_role("img", name="Rows of 3 slices")).to_be_visible()
    page.get_by_role("link", name=words).click()
    expect(page.get_by_text("Version 1 is there, as first had it: 600 rows.")).to_be_visible()


def test_days_whose_task_never_came_to_its_slice_lead_to_airflow_and_are_not_missing(
    page: Page, ui: UiServer
) -> None:
    runs = [
        Run(f"2026-02-0{i + 1}", "upstream_failed" if i == 3 else None if i == 4 else "success",
            run_id=f"s{i}", date=dt.datetime(2026, 2, 1, tzinfo=dt.UTC) + i * DAY, has_slice=i < 3)
        for i in (0, 2, 3, 4)
    ]  # fmt: skip
    with ui.database() as session:
        write_runs(session, DAG, "waits", runs)
        write_schedule(session, DAG, "waits", following=dt.datetime(2026, 2, 6, tzinfo=dt.UTC))
    page.goto(f"/plugin/ray-llm/dags/{DAG}/tasks/waits")
    words = "its task has not come to the slice"
    expect(page.get_by_role("link", name=f"2026-02-05: Waiting; {words}")).to_be_visible()
    expect(page.get_by_role("img", name="2026-02-02: Missing")).to_be_visible()
    expect(page.get_by_text("Missing 1")).to_be_visible()
    words = "Failed: did not run, because a task before it failed"
    page.get_by_role("link", name=f"2026-02-04: {words}").click()
    page.wait_for_url(f"**/dags/{DAG}/runs/s3/tasks/waits**")


def test_action_runs_with_the_model_of_the_run_that_it_is_about(page: Page) -> None:
    started = answer_for_airflow(page)
    page.goto(f"{PATH}/runs/rerun/-1")
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").dblclick()
    expect(page.get_by_text("Started: by-hand")).to_be_visible()
    assert started == [
        {"conf": {"model": "large", "force": True, "slice": "2026-01-01"}, "logical_date": None}
    ]


def test_older_run_leads_to_the_newest_and_offers_nothing(page: Page) -> None:
    answer_for_airflow(page)
    page.goto(f"{PATH}/runs/old/-1")
    expect(page.get_by_text("570 answered")).to_be_visible()
    expect(page.get_by_role("heading", name="Actions")).to_have_count(0)
    page.get_by_text("The slice has a newer run").get_by_role("link", name="new").click()
    expect(page.get_by_role("button", name="Answer all rows again")).to_be_visible()
    expect(page.get_by_role("button", name="Answer quarantined rows again")).to_have_count(0)


def test_runs_of_a_slice_fit_a_phone_and_begin_with_what_happened_when_and_why(page: Page) -> None:
    answer_for_airflow(page)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{PATH}/runs/died-1/-1")
    table = page.get_by_role("heading", name="Runs of this slice").locator("xpath=ancestor::section[1]")
    expect(table).to_contain_text(WHY)
    assert scrolled_sideways(page, "section *:has(> table)") == []
    assert sticks_out(page) == []
    table.scroll_into_view_if_needed()
    take(page, "runs-phone")
    newest, _ = table.get_by_role("row").all_inner_texts()
    assert newest.index("Failed") < newest.index("2023") < newest.index(WHY) < newest.index("died-1")


def test_page_says_so_when_another_version_is_published_than_the_one_that_it_is_about(page: Page) -> None:
    """As by `airflow-ray-llm restore`, which is no run of Airflow's."""
    rows = {"fingerprint": "f", "model": "tiny", "labels": None, "counts": {"planned": 9, "succeeded": 9}}
    versions = [{"number": number, **rows} for number in (3, 2)]
    stored = {"versions": versions, "report": None, "progress": None, "note": None}
    page.route("**/stored?*", lambda route: route.fulfill(json=stored))
    page.goto(f"{PATH}/runs/new/-1")
    words = "Version 3 is published now. The figures of this page are of version 2."
    expect(page.get_by_text(words)).to_be_visible()


def test_dag_without_the_task_starts_nothing_for_it(page: Page) -> None:
    answer_for_airflow(page, task="renamed")
    page.goto(f"{PATH}/runs/rerun/-1")
    expect(page.get_by_text("The DAG has no task of this name any more")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)


def test_progress_that_counts_more_rows_than_planned_is_shown(page: Page) -> None:
    """The bar would fail, and the page with it."""
    progress = {"step": "answer", "rows": 20, "planned": 10, "history": None}
    stored = {"versions": [], "report": None, "progress": progress, "note": None}
    page.route("**/stored?*", lambda route: route.fulfill(json=stored))
    page.goto(f"{PATH}/runs/running/-1")
    expect(page.get_by_text("20 of 10 rows")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_visible()


def test_running_slice_says_when_it_is_not_refreshed_any_more(page: Page) -> None:
    page.goto(f"{PATH}/runs/running/-1")
    expect(page.get_by_role("heading", name="2026-01-03")).to_be_visible()
    page.route("**/ray-llm/api/**", lambda route: route.fulfill(status=401, body="{}"))
    expect(page.get_by_role("alert")).to_have_text("You are not logged in any more: reload the page.")
    expect(page.get_by_text("folder could not be read")).to_have_count(0)
    page.unroute("**/ray-llm/api/**")
    expect(page.get_by_role("alert")).to_have_count(0)
