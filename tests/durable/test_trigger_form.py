"""The Params of `slice_params`, as the trigger form shows them and Airflow's REST API checks them."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.support import browser
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, Task, wait_for

DAG_ID, DAY = "notified_deferred", "2025-01-02"


@pytest.mark.parametrize("conf", [
    {"slice": "yesterday"}, {"model": "other/model"}, {"max_quarantine": 5}, {"max_rows": 0},
    {"force": "yes"},
])  # fmt: skip
def test_rest_api_refuses_wrong_values_and_makes_no_run(airflow: Airflow, conf: dict[str, object]) -> None:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        airflow.api.trigger(DAG_ID, conf=conf)
    assert refused.value.response.status_code == 400
    assert next(iter(conf)) in refused.value.response.text


def test_form_names_each_param_and_starts_a_run_with_its_values(airflow: Airflow) -> None:
    program = browser.chromium()
    if program is None:
        pytest.skip("no Chromium: install chromium, or run `playwright install chromium`")
    with browser.logged_in(airflow, program) as page:
        page.goto(f"/dags/{DAG_ID}")
        page.get_by_role("button", name="Trigger Dag").click()
        form = page.get_by_role("dialog")
        for title, description in {
            "Day": "Empty: that of the run", "Model": "Another one replaces the day's answers",
            "Rows of a trial": "Empty: the whole day", "Answer quarantined rows again": "Of a published day",
            "Answer all rows again": "Also where nothing changed",
            "Share of rows that may fail": "From 0 to 1",
        }.items():  # fmt: skip
            expect(form).to_contain_text(re.compile(f"{title}.*{description}", re.DOTALL))
        form.locator("#element_table").fill("formed")
        form.locator("#element_slice").fill(DAY)
        form.get_by_role("spinbutton", name="Rows of a trial").fill("7")
        form.get_by_test_id("trigger-dag-submit").click()
        form.wait_for(state="hidden")

    def find_run() -> Any:
        runs = airflow.api.call("GET", f"/dags/{DAG_ID}/dagRuns", params={"order_by": "-start_date"})
        return next((run for run in runs["dag_runs"] if run["conf"].get("table") == "formed"), None)

    run = wait_for(find_run, LIMIT, "the run that the form started")
    airflow.api.call("PATCH", Task(DAG_ID, run["dag_run_id"]).run_path, json={"state": "failed"})
    assert run["conf"] == {
        "table": "formed", "slice": DAY, "model": "stub/stub", "max_rows": 7, "retry_quarantined": False,
        "force": False, "max_quarantine": 0.1,
    }  # fmt: skip
